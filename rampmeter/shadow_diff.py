"""`rampmeter shadow-diff`: what a shadow decided otherwise than the workers that serve, from the topics alone.

Measured are the decisions, prices and waits before a lane of both, and what served requests waited on lanes and used.
Estimated is what the shadow's would wait on lanes, and use where they did not run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rampmeter import reading
from rampmeter.output import Output
from rampmeter.results import Spread, shown, spread
from rampmeter.stances import Pair, Stance, Stances
from streams.settings import StreamsSettings
from topics import codec

KEPT = 100
"""Changed requests that are named."""
SHOWN = 20
KINDS = ("outcome", "class", "lane", "price")
NO_TENANT = "(unknown)"
BASIS = {
    "measured": "outcomes, prices and queued_s (arrival to admission) of both; lane_s (admission to engine) and"
    " used_units of what was served",
    "estimated": "the shadow's lane_s: what the request really waited if its lane is the same, else the median of the"
    " other lane; lanes are taken as they were. Its used_units: the real use at the shadow's coefficient."
    " Its unrun_units: the price of what it admits and nobody ran",
    "unknown": "null and never zero. lane_unknown: requests of the shadow on lanes where none was seen to wait."
    " unsettled: admitted requests whose use was not told yet",
}
"""What the figures rest on."""


class Served(msgspec.Struct, frozen=True):
    """What the workers that serve did."""

    outcomes: dict[str, int]
    priced_units: float
    """Price of what was admitted."""
    used_units: float
    unsettled: int
    queued_s: Spread
    lane_s: Spread


class Shadowed(msgspec.Struct, frozen=True):
    """What the shadow would have done."""

    outcomes: dict[str, int]
    priced_units: float
    used_units: float
    unrun_units: float
    queued_s: Spread
    lane_s: Spread
    lane_unknown: int


class Part(msgspec.Struct, frozen=True):
    """The requests of one tenant, or all."""

    requests: int
    changed: dict[str, int]
    real: Served
    shadow: Shadowed


class Word(msgspec.Struct, frozen=True):
    """One side of a change."""

    outcome: str
    priority: str | None
    lane: str | None
    cost_units: float | None
    queued_s: float | None


class Change(msgspec.Struct, frozen=True):
    """A request on which the two differ."""

    id: str
    tenant: str
    what: list[str]
    real: Word
    shadow: Word


class ShadowDiff(msgspec.Struct, frozen=True):
    """The whole report.  Compared is what both have decided for good."""

    shadow: str
    compared: int
    only_real: int
    only_shadow: int
    waiting: int
    """Decided by both, and by at least one not yet for good."""
    changed_requests: int
    moves: dict[str, int]
    """Requests by real and shadow outcome, where these differ."""
    total: Part
    tenants: dict[str, Part]
    changes: list[Change]
    """The first of them."""
    basis: dict[str, str]


def report(found: Stances) -> ShadowDiff:
    """Compare what both decided."""
    pairs = found.pairs()
    final = {key: pair for key, pair in pairs.items() if pair.is_final}
    changed = {key: pair for key, pair in final.items() if pair.changes}
    moved = [pair for pair in changed.values() if "outcome" in pair.changes]
    medians = found.lane_medians()
    by_tenant: dict[str, list[Pair]] = {}
    for pair in final.values():
        by_tenant.setdefault(_tenant(pair), []).append(pair)
    return ShadowDiff(
        shadow=found.shadow,
        compared=len(final),
        only_real=len(found.real) - len(pairs),
        only_shadow=len(found.shadowed) - len(pairs),
        waiting=len(pairs) - len(final),
        changed_requests=len(changed),
        moves=dict(Counter(f"{pair.real.outcome} -> {pair.shadow.outcome}" for pair in moved).most_common()),
        total=_part(list(final.values()), medians),
        tenants={tenant: _part(some, medians) for tenant, some in sorted(by_tenant.items())},
        changes=[
            Change(key, _tenant(pair), pair.changes, _word(pair.real), _word(pair.shadow))
            for key, pair in list(changed.items())[:KEPT]
        ],
        basis=BASIS,
    )


def read(settings: StreamsSettings, shadow: str, since_s: float) -> Stances:
    """Read both sides' decisions since then, and how long requests waited."""
    found = Stances(shadow)
    for _, decision in reading.records(settings, "decisions", codec.decode_decision, since_s):
        found.decision(decision)
    for _, reply in reading.replies(settings, since_s):
        found.reply(reply)
    return found


def show(found: ShadowDiff, output: Output) -> None:
    """Print the report."""
    if output.as_json:
        output.result(found)
        return
    names = ("compared", "changed_requests", "waiting", "only_real", "only_shadow")
    rows = [(name.replace("_", " "), str(getattr(found, name))) for name in names]
    rows += [(f"  {move}", str(count)) for move, count in found.moves.items()]
    output.table(f"Shadow {found.shadow}, beside what was served", ("", ""), rows)
    columns = ("tenant", "", "admitted", "price", "used", "queued p50 / p99 s", "on lanes p50 / p99 s", "changed")
    parts = {**found.tenants, "all": found.total} if len(found.tenants) > 1 else found.tenants
    output.table("", columns, [row for tenant, part in parts.items() for row in _rows(tenant, part)])
    for change in found.changes[:SHOWN]:
        output.text(f"{change.id}: {', '.join(change.what)}: {_shown(change.real)} -> {_shown(change.shadow)}")
    if len(found.changes) > SHOWN:
        output.text(f"… --json names the first {KEPT}")
    for name, text in found.basis.items():
        output.text(f"{name}: {text}")


def _part(some: Sequence[Pair], medians: Mapping[str, float]) -> Part:
    counted = Counter(kind for pair in some for kind in pair.changes)
    return Part(len(some), {kind: counted[kind] for kind in KINDS}, _served(some), _shadowed(some, medians))


def _served(some: Sequence[Pair]) -> Served:
    admitted = [pair for pair in some if pair.real.is_admitted]
    return Served(
        outcomes=_outcomes(pair.real for pair in some),
        priced_units=_sum(pair.real.grounds.cost_units for pair in admitted),
        used_units=_sum(pair.used_units for pair in some),
        unsettled=sum(1 for pair in admitted if pair.used_units is None),
        queued_s=spread(pair.real.queued_s for pair in admitted),
        lane_s=spread(pair.lane_s for pair in admitted),
    )


def _shadowed(some: Sequence[Pair], medians: Mapping[str, float]) -> Shadowed:
    admitted = [pair for pair in some if pair.shadow.is_admitted]
    lane_s = [pair.lane_estimate_s(medians) for pair in admitted]
    return Shadowed(
        outcomes=_outcomes(pair.shadow for pair in some),
        priced_units=_sum(pair.shadow.grounds.cost_units for pair in admitted),
        used_units=_sum(pair.used_at_shadow_price for pair in admitted),
        unrun_units=_sum(pair.shadow.grounds.cost_units for pair in admitted if not pair.real.is_admitted),
        queued_s=spread(pair.shadow.queued_s for pair in admitted),
        lane_s=spread(lane_s),
        lane_unknown=lane_s.count(None),
    )


def _outcomes(sides: Iterable[Stance]) -> dict[str, int]:
    return dict(sorted(Counter(side.outcome for side in sides).items()))


def _sum(units: Iterable[float | None]) -> float:
    """Of those that are known; how many are not is counted beside it."""
    return round(sum(known for known in units if known is not None), 3)


def _tenant(pair: Pair) -> str:
    return pair.real.grounds.tenant or pair.shadow.grounds.tenant or NO_TENANT


def _word(side: Stance) -> Word:
    grounds = side.grounds
    return Word(side.outcome, grounds.priority, side.lane, grounds.cost_units, side.queued_s)


def _rows(tenant: str, part: Part) -> list[tuple[str, ...]]:
    changed = ", ".join(f"{kind} {count}" for kind, count in part.changed.items() if count)
    return [
        (tenant, "served", *_cells(part, part.real), changed),
        ("", "shadow", *_cells(part, part.shadow), ""),
    ]


def _cells(part: Part, side: Served | Shadowed) -> tuple[str, ...]:
    used = f"{side.used_units:g}"
    if isinstance(side, Shadowed) and side.unrun_units:
        used += f" + {side.unrun_units:g}"
    admitted = f"{side.outcomes.get('admitted', 0)} of {part.requests}"
    return admitted, f"{side.priced_units:g}", used, _times(side.queued_s), _times(side.lane_s)


def _times(found: Spread) -> str:
    return " / ".join(map(shown, found.values()))


def _shown(word: Word) -> str:
    cost = "" if word.cost_units is None else f" at {word.cost_units:g}"
    return f"{word.outcome} on {word.lane or '?'}{cost}"
