"""What goes to the ledger's scripts and what comes back: the types, and their encoding as MessagePack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from streams.policy.admission import LEVELS, Facts
from streams.policy.sharing import Capacity, Share
from streams.settings import Bucket, StreamsSettings
from topics.records import Length, Origin, Priority

Level = tuple[str, str]
"""A budget's level and name, such as (`tenant`, `acme`)."""
Reader = Callable[[Level], Bucket]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a record wants.  `closed` remembers an id that is answered without any budget."""

    id: str
    origin: Origin
    reply_topic: str
    tenant: str
    pool: str = ""
    lane: str = ""
    """`<tier>.<length>`."""
    priority: Priority | None = None
    units: float = 0.0
    lane_wait_limit_s: float = 0.0
    budget_wait_limit_s: float = 0.0
    """How long it may wait for budget; a longer wait keeps no turn for it."""
    is_back: bool = False
    """It waited before the lane already."""
    closed: bool = False
    only_asks: bool = False
    """Only tells what is known of the id."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What an attempt really cost, and whose budgets pay when no reservation is left."""

    id: str
    attempt: int
    units: float
    partial: bool
    """The request is tried again: its reservation stays."""
    reserved_units: float
    tenant: str
    pool: str
    priority: Priority
    lane: str


@dataclass(frozen=True, slots=True)
class Ending:
    """A request that was decided to end without running."""

    id: str
    why: str
    also_reserved: bool = True
    """Also when its cost is held: False leaves alone what another run of the same record has put on a lane."""


@dataclass(frozen=True, slots=True)
class Paid:
    """Reserved on all levels; `facts` are those before it."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was taken; `facts` say why.  It counts as waiting until it is reserved or finished."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Closed:
    """The id is remembered as answered by admission itself."""


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The same record was decided before; `state` is reserved, finished or settled, `why` is of a finished one."""

    state: str
    at_s: float
    why: str | None = None
    ended_s: float | None = None
    """How long ago it was finished, or another run was last told that it may answer, by the server's clock."""
    cost_units: float | None = None
    """At what it was admitted; None: the ledger knows."""
    unreserved: bool = False
    """No budget holds its cost."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Another record with this id came first; its answer goes to `reply_topic`."""

    at_s: float
    reply_topic: str
    may_be_answered: bool


@dataclass(frozen=True, slots=True)
class New:
    """Nothing was decided about the id yet."""


Standing = Paid | Refused | Closed | New | Redelivered | Repeated


@dataclass(frozen=True, slots=True)
class Settled:
    """What a charge did.  `unknown`: no reservation was left, the difference was charged to the named budgets."""

    result: Literal["settled", "repeat", "unknown", "partial"]
    refunded_units: float
    """Given back to every level; below zero is a charge."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Levels that a call changed, by bucket, at the server's time."""

    at_s: float
    levels: Mapping[str, float]


_UNDER_WAY_S = 4.0
"""From the end of `delivery_s` until nothing of an answer can arrive any more, the clocks' difference included.  Too
small: two runs of a record answer it.  Too large: what a killed worker left unanswered waits for as long."""


def hold_s(settings: StreamsSettings) -> float:
    """For how long after an id has ended its answer may be on its way from the run that ended it."""
    return settings.streams.delivery_s + _UNDER_WAY_S


def encode_asks(
    asks: Sequence[Ask], capacities: Mapping[str, Capacity], settings: StreamsSettings, bucket: Reader
) -> bytes:
    """A micro-batch for `reserve.lua`."""
    places = _Places()
    pools: dict[str, int] = {}
    wanted: list[tuple[Any, ...]] = []
    for ask in asks:
        place = ask.origin.place
        if ask.only_asks or ask.closed:
            wanted.append((place,) if ask.only_asks else (place, ask.reply_topic))
            continue
        levels = places[ask.pool, ask.tenant, ask.priority or ""]
        pool = pools.setdefault(ask.pool, len(pools) + 1)
        wanted.append(
            (
                place,
                ask.reply_topic,
                ask.units,
                pool,
                ask.lane,
                ask.tenant,
                ask.priority or "",
                levels,
                ask.lane_wait_limit_s,
                ask.is_back,
                ask.budget_wait_limit_s,
            )
        )
    rooms = [_room(pool, capacities.get(pool, Capacity()), settings) for pool in pools]
    return _pack((*_common(settings), places.limits(bucket), rooms, wanted, hold_s(settings)))


def encode_charges(charges: Sequence[Charge], settings: StreamsSettings, bucket: Reader) -> bytes:
    """A batch for `settle.lua`."""
    places = _Places()
    wanted = [
        (
            c.attempt,
            c.units,
            c.partial,
            c.reserved_units,
            c.pool,
            c.lane,
            c.tenant,
            places[c.pool, c.tenant, c.priority],
        )
        for c in charges
    ]
    return _pack((*_common(settings), places.limits(bucket), (), wanted))


def encode_endings(endings: Sequence[Ending], settings: StreamsSettings) -> bytes:
    """A batch for `finish.lua`."""
    whys, also_reserved = [ending.why for ending in endings], [ending.also_reserved for ending in endings]
    return _pack((*_common(settings), (), (), whys, also_reserved))


def encode_levels(levels: Mapping[str, tuple[float, float]], bucket: Reader, *, marks: bool) -> bytes:
    """Buckets for `restore.lua`; `marks`: the ledger is whole with them."""
    found = []
    for name, (units, as_of_s) in levels.items():
        level, _, owner = name.partition(":")
        found.append((*_limits((level, owner), bucket((level, owner))), units, as_of_s))
    return _pack((marks, found))


def encode_lanes() -> bytes:
    """The lanes of a pool, for `drift.lua`."""
    return _pack([f"{priority}.{length}" for priority in Priority for length in Length])


def decode_standings(answer: bytes) -> tuple[Touched, list[Standing]]:
    """What `reserve.lua` said."""
    at_s, levels, answers = msgspec.msgpack.decode(answer)
    return _touched(at_s, levels), [_standing(each) for each in answers]


def decode_settled(answer: bytes) -> tuple[Touched, list[Settled]]:
    """What `settle.lua` said."""
    at_s, levels, answers = msgspec.msgpack.decode(answer)
    return _touched(at_s, levels), [Settled(result, float(units)) for result, units in answers]


def decode_finished(answer: bytes) -> tuple[Touched, list[bool]]:
    """What `finish.lua` said."""
    at_s, levels, firsts = msgspec.msgpack.decode(answer)
    return _touched(at_s, levels), firsts


_WITHOUT_AGE = 3
_pack = msgspec.msgpack.Encoder().encode


def _common(settings: StreamsSettings) -> tuple[float, float]:
    return settings.dedupe_window_s, settings.streams.fair.half_life_s


class _Places(dict[tuple[str, str, str], tuple[int, ...]]):
    """Where in a call's list of limits the levels of a pool, tenant and class are, counted from 1 as Lua does."""

    def __init__(self) -> None:
        super().__init__()
        self._levels: dict[Level, int] = {}

    def __missing__(self, owners: tuple[str, str, str]) -> tuple[int, ...]:
        named = zip(LEVELS, ("all", *owners), strict=True)
        places = tuple(self._levels.setdefault(level, len(self._levels) + 1) for level in named)
        self[owners] = places
        return places

    def limits(self, bucket: Reader) -> list[tuple[str, float, float, float, bool]]:
        """The list."""
        return [_limits(level, bucket(level)) for level in self._levels]


def _limits(level: Level, bucket: Bucket) -> tuple[str, float, float, float, bool]:
    """A bucket as the scripts read it; its name is that of `Balances.levels`."""
    return f"{level[0]}:{level[1]}", bucket.refill_units_per_s, bucket.cap_units, bucket.warm_up_s, bucket.paced


def _room(pool: str, capacity: Capacity, settings: StreamsSettings) -> tuple[Any, ...]:
    """A pool's capacity (False where unknown) and the weights of its lanes."""
    window_units = capacity.window_units(settings.streams.fair.window_s)
    known = [False if x is None else x for x in (capacity.units_per_s, capacity.units, window_units)]
    section = settings.pools[pool]
    tiers = {"high": section.high_weight, "medium": section.medium_weight, "low": section.low_weight}
    lengths = {Length.SHORT: section.short_weight, Length.LONG: section.long_weight}
    weights = {f"{tier}.{length}": tiers[tier] * lengths[length] for tier in tiers for length in lengths}
    return (pool, *known, list(weights), list(weights.values()))


def _touched(at_s: float, levels: Sequence[Any]) -> Touched:
    return Touched(at_s, dict(zip(levels[::2], map(float, levels[1::2]), strict=True)))


def _standing(answer: list[Any]) -> Standing:
    said = answer[0]
    if said is True:
        return Paid(_facts(*answer[1:]))
    if said is False:
        return Refused(_facts(*answer[1:]))
    if said == "closed":
        return Closed()
    if said == "new":
        return New()
    if said == "repeat":
        return Repeated(*answer[1:])
    ended_s = answer[3] if len(answer) > _WITHOUT_AGE else False
    return Redelivered(said, answer[1], answer[2] or None, None if ended_s is False else float(ended_s))


def _facts(share: list[Any], attained: float, level: int, wait_s: float, cap: float | None = None) -> Facts:
    share[-1] = tuple((float(units), float(weight_ratio)) for units, weight_ratio in share[-1])
    return Facts(Share(*share), LEVELS[level - 1] if level else "", wait_s, cap, attained)
