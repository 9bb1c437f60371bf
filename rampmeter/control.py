"""Orders to the running workers: made, sent until the broker has them, and shown as they hold."""

import getpass
import socket
import uuid
from contextlib import closing
from dataclasses import dataclass

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from rampmeter import columns, durations, positions, reading
from rampmeter.ask import Letter
from rampmeter.output import Output
from streams.limits import configured, ordered
from streams.policy import control
from streams.policy.control import Event, State
from streams.settings import Streams, StreamsSettings
from topics import answers, clients, codec, orders
from topics.clock import Clock
from topics.errors import DependencyDown, PipelineError
from topics.records import Control, ControlAction, ControlKind, Priority, Reply
from topics.settings import Settings

ACKNOWLEDGED_WITHIN_S = 15.0
_POLL_S = 0.2
_FAULTS = {
    "wrong_kind": "this cannot be ordered of a {kind}",
    "unknown_name": "there is no {kind} {name!r} in the settings, or the name has other signs than A-Za-z0-9._:~@/+=-",
    "bad_limit": "limits must be above zero",
}


class OrderRefused(PipelineError):
    """An order that no worker would follow."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an order says besides its target."""

    tenant: str | None = None
    refill_units_per_s: float | None = None
    burst_s: float | None = None


def make_order(
    settings: Settings, clock: Clock, action: ControlAction, target: tuple[ControlKind, str], change: Change
) -> Control:
    """An order with an id of its own; raises OrderRefused."""
    kind, name = target
    order = Control(
        id=uuid.uuid4().hex,
        action=action,
        kind=kind,
        name=name,
        at_s=clock.wall_s(),
        by=_me(),
        refill_units_per_s=change.refill_units_per_s,
        burst_s=change.burst_s,
        tenant=change.tenant,
    )
    fault = orders.fault(order, orders.key_of(order), settings.pools)
    if fault is None and change.tenant is not None and not codec.NAME.fullmatch(change.tenant):
        kind, name, fault = ControlKind.TENANT, change.tenant, "unknown_name"
    if fault is not None:
        raise OrderRefused(_FAULTS[fault].format(kind=kind.value, name=name))
    return order


def cancel_order(settings: Settings, clock: Clock, request_id: str, tenant: str | None) -> Control:
    """The order that a request be cancelled wherever it is; raises OrderRefused."""
    return make_order(settings, clock, ControlAction.CANCEL, (ControlKind.REQUEST, request_id), Change(tenant=tenant))


def letter_of(settings: Settings, order: Control) -> Letter:
    """An order as its record."""
    return Letter(settings.topic("control"), orders.key_of(order).encode(), codec.encode(order))


def send_order(settings: Settings, order: Control) -> None:
    """Put an order on the control topic; raises DependencyDown unless the broker acknowledged it."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = clients.producer(settings, delivered_within_s=ACKNOWLEDGED_WITHIN_S)
    letter = letter_of(settings, order)
    try:
        producer.produce(letter.topic, letter.value, letter.key, on_delivery=delivered)
    except KafkaException as error:
        failures.append(error.args[0])
    producer.flush()
    if failures:
        servers = settings.kafka.get("bootstrap.servers", "")
        fix = f"Look at the topic {letter.topic}; `rampmeter topics apply` creates it."
        raise DependencyDown(f"Kafka did not take the order: {failures[0].str()}", servers, fix)


def wait_end(settings: StreamsSettings, clock: Clock, request_id: str, timeout_s: float) -> Reply | None:
    """The terminal reply of a request, also one that was given within the dedupe window; None when none comes."""
    until_s = clock.mono_s() + timeout_s
    with closing(clients.reader(settings)) as reader:
        topics = reading.reply_topics(settings)
        places = {(place.topic, place.partition): place for place in positions.ends(reader, topics)}
        earlier = positions.since(reader, topics, clock.wall_s() - settings.dedupe_window_s)
        places |= {(place.topic, place.partition): place for place in earlier}
        reader.assign(list(places.values()))
        while (left_s := until_s - clock.mono_s()) > 0:
            message = reader.poll(min(left_s, _POLL_S))
            if message is not None and message.error() is None and message.key() == request_id.encode():
                answer = answers.read(message.value())
                if isinstance(answer, Reply) and not answer.repeat:
                    return answer
    return None


def read_state(settings: Settings, now_s: float) -> State:
    """The orders that hold, from the control topic."""
    events = [
        Event(key, order, order.at_s if order else now_s)
        for message in reading.whole(settings, settings.topic("control"))
        for key, order in [_read(message)]
        if order is None or orders.fault(order, key, settings.pools) is None
    ]
    return control.fold(State(), events, now_s - settings.dedupe_window_s)[0]


class Limit(msgspec.Struct, frozen=True):
    """A budget as it holds now; `order` is the one that changed it, None when the settings hold."""

    level: str
    name: str
    refill_units_per_s: float
    burst_s: float
    cap_units: float
    paced: bool
    pause: Control | None = None
    """The order that stops its work, while one does."""
    order: Control | None = None


def limits(settings: StreamsSettings, state: State) -> list[Limit]:
    """Every budget that the settings or an order name.  The tenant `*` is any other tenant."""
    section = settings.streams
    tenants = {
        *section.tenant_budgets,
        *(order.name for order in state.orders.values() if order.kind is ControlKind.TENANT and _holds(order, section)),
    }
    names = {
        ControlKind.GLOBAL: [orders.ALL],
        ControlKind.POOL: list(settings.pools),
        ControlKind.CLASS: [priority.value for priority in Priority],
        ControlKind.TENANT: ["*", *sorted(tenants)],
    }
    return [_limit(kind, name, section, state) for kind in names for name in names[kind]]


def show_limits(rows: list[Limit], now_s: float, output: Output) -> None:
    """A table for people, JSON for machines."""
    if output.as_json:
        output.result({"limits": rows})
        return
    cells = [
        (
            row.level,
            row.name,
            _shown(row.refill_units_per_s),
            _shown(row.burst_s),
            _shown(row.cap_units),
            _state(row, now_s),
        )
        for row in rows
    ]
    titles = ("LEVEL", "NAME", "UNITS/S", "BURST S", "CAP UNITS", "STATE")
    output.text(columns.render(titles, cells, right=(2, 3, 4)))


def _state(row: Limit, now_s: float) -> str:
    """Who paused or changed it; `settings` when nobody did."""
    holding = (("paused", row.pause), ("set", row.order))
    given = [f"{what} by {o.by}, {durations.shown(now_s - o.at_s)} ago" for what, o in holding if o is not None]
    return "; ".join(given) or "settings"


def _shown(number: float) -> str:
    """Whole above a thousand, six digits below."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.6g}"


def _limit(kind: ControlKind, name: str, section: Streams, state: State) -> Limit:
    order = state.orders.get(orders.limits_key(kind, name))
    changed = None if order is None else ordered(section, order)
    bucket = changed or configured(section, kind, name)
    key = orders.pause_key(kind, name)
    return Limit(
        level=kind.value,
        name=name,
        refill_units_per_s=bucket.refill_units_per_s,
        burst_s=bucket.burst_s,
        cap_units=bucket.cap_units,
        paced=bucket.paced,
        pause=state.orders[key] if key in state.paused else None,
        order=None if changed is None else order,
    )


def _holds(order: Control, section: Streams) -> bool:
    """Whether the order changes anything against the settings."""
    if order.action is ControlAction.LIMITS:
        return ordered(section, order) is not None
    return order.action is ControlAction.PAUSE


def _read(message: Message) -> tuple[str, Control | None]:
    key = (message.key() or b"").decode(errors="replace")
    value = message.value()
    try:
        return key, codec.decode_control(value) if value else None
    except codec.UNREADABLE:
        return "", None  # no key of ours: changes nothing


def _me() -> str:
    """Who gives orders here."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
