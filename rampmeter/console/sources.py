"""What the console reads, each source in its own thread: what is kept between readings is opened once."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields

import msgspec

from autoscaler.admissions import Before, Waiting
from autoscaler.backlog import BacklogReader
from autoscaler.fleet import FORGET_S, FleetReader
from autoscaler.following import Follower, Source
from rampmeter import control, lag
from rampmeter.console import budgets
from rampmeter.console.budgets import Level, Name
from rampmeter.console.history import QueuePoint, Queues, WaitPoint, Waits
from rampmeter.console.settings import ConsoleSettings
from rampmeter.console.tally import Tally, Told, largest
from rampmeter.console.watch import Read, Seen, Watch
from rampmeter.control import Limit
from rampmeter.lag import Row
from topics import clients, codec, keys
from topics.clock import Clock
from topics.records import Priority, Tier
from topics.telemetry import Telemetry

_ORDERS_S = 5.0
"""How often orders are read.  Too small: the whole topic is read as often.  Too large: a pause is shown late."""
_QUEUED_KIB = 16_384


class Lanes(msgspec.Struct, frozen=True):
    """All lanes of all pools, completely."""

    rows: list[Row]
    points: tuple[QueuePoint, ...]


class Decided(msgspec.Struct, frozen=True):
    """What the decision log tells."""

    told: Told
    before: dict[str, Before]
    """By pool, what waits before the lanes for room on them."""


class Orders(msgspec.Struct, frozen=True):
    """The budgets as orders and settings say."""

    limits: list[Limit]


@dataclass(frozen=True, slots=True)
class Watches:
    """All sources.  Fields are in the order in which the page names them."""

    lanes: Watch[Lanes]
    consumers: Watch[list[Telemetry]]
    decisions: Watch[Decided]
    waits: Watch[tuple[WaitPoint, ...]]
    orders: Watch[Orders]
    budgets: Watch[dict[Name, Level]]

    def all(self) -> list[Watch[object]]:
        """Each of them."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True, slots=True)
class Views:
    """What each source last said."""

    lanes: Seen[Lanes]
    consumers: Seen[list[Telemetry]]
    decisions: Seen[Decided]
    waits: Seen[tuple[WaitPoint, ...]]
    orders: Seen[Orders]
    budgets: Seen[dict[Name, Level]]

    def all(self) -> list[Seen[object]]:
        """Each of them."""
        return [getattr(self, field.name) for field in fields(self)]


def make(settings: ConsoleSettings, clock: Clock) -> Watches:
    """The sources, not started."""
    own = settings.console
    opening = _Sources(settings, clock)
    decisions = Watch("decisions", opening.decisions, clock, own.period_s)
    orders = Watch("orders", opening.orders, clock, max(_ORDERS_S, own.period_s))

    def names() -> list[Name]:
        told, limits = decisions.seen.value, orders.seen.value
        tenants = [] if told is None else largest(told.told.tenants, own.tenants)
        return budgets.wanted([] if limits is None else limits.limits, tenants)

    return Watches(
        Watch("lanes", opening.lanes, clock, own.period_s),
        Watch("consumers", opening.consumers, clock, own.period_s),
        decisions,
        Watch("waits", opening.waits, clock, own.period_s),
        orders,
        Watch("budgets", lambda: opening.budgets(names), clock, own.period_s),
    )


class _Sources:
    """Opens them.  Each is then used by one thread."""

    def __init__(self, settings: ConsoleSettings, clock: Clock) -> None:
        self._settings, self._clock, self._own = settings, clock, settings.console

    @contextmanager
    def lanes(self) -> Iterator[Read[Lanes]]:
        queues = Queues(self._own.history_s)
        with BacklogReader(self._settings, self._clock, self._own.read_timeout_s) as reader:

            def read() -> Lanes:
                rows = lag.rows(reader.read(pool) for pool in self._settings.pools)
                by_tier = {tier.value: sum(row.lag_records for row in rows if row.tier == tier) for tier in Tier}
                return Lanes(rows, queues.note(by_tier, self._clock.wall_s()))

            yield read

    @contextmanager
    def consumers(self) -> Iterator[Read[list[Telemetry]]]:
        """Whoever fell silent is still told of for a while."""
        with FleetReader(self._settings, self._clock, self._own.read_timeout_s, FORGET_S) as reader:

            def read() -> list[Telemetry]:
                reader.read()
                reader.require_leader()
                return [told for told in reader.reports() if told.state != "gone"]

            yield read

    @contextmanager
    def decisions(self) -> Iterator[Read[Decided]]:
        tally, waiting = Tally(self._own.decisions), Waiting()
        with self._follow("decisions") as follower:

            def read() -> Decided:
                follower.begin()
                follower.require_leader()
                for value in follower.values():
                    tally.take(value, self._clock.wall_s())
                    waiting.take(value, self._clock.mono_s())
                before = waiting.summed_up(self._clock.mono_s())
                return Decided(tally.told(self._clock.wall_s()), before)

            yield read

    @contextmanager
    def waits(self) -> Iterator[Read[tuple[WaitPoint, ...]]]:
        waits = Waits(self._own.history_s, list(Priority))
        with self._follow("usage") as follower:

            def read() -> tuple[WaitPoint, ...]:
                follower.begin()
                follower.require_leader()
                now_s = self._clock.wall_s()
                for value in follower.values():
                    try:
                        usage = codec.decode_usage(value)
                    except codec.UNREADABLE:
                        continue
                    if usage.waited_s is not None:
                        waits.add(usage.priority, usage.waited_s, usage.finished_s, now_s)
                return waits.points(now_s)

            yield read

    @contextmanager
    def orders(self) -> Iterator[Read[Orders]]:
        def read() -> Orders:
            clients.require_kafka(self._settings, self._own.read_timeout_s)
            return Orders(control.limits(self._settings, control.read_state(self._settings, self._clock.wall_s())))

        yield read

    @contextmanager
    def budgets(self, names: Callable[[], list[Name]]) -> Iterator[Read[dict[Name, Level]]]:
        with closing(clients.redis_sync(self._settings)) as client:

            def read() -> dict[Name, Level]:
                with clients.redis_down_as_dependency(self._settings):
                    return budgets.read(client, keys.of(self._settings), names())

            yield read

    def _follow(self, name: str) -> Follower:
        own = self._own
        source = Source(name, self._settings.topics.landing_partitions, own.history_s, _QUEUED_KIB)
        return Follower(self._settings, self._clock, own.read_timeout_s, source)
