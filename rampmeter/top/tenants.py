"""What tenants ask for and use, from the decision log.  Pure; time is an argument."""

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from rampmeter.top.snapshot import Tenant
from topics import codec

WINDOW_S = 30
"""Too small: one request is a wave.  Too large: a flood is noticed late."""
FORGET_S = 900.0
"""Who waits and was not heard of for this long has an end that was not seen here."""
MAX_TENANTS = 5_000
"""In one second; what the others ask for is that of `OTHERS`."""
MAX_WAITING = 200_000
OTHERS = "(others)"
_WAITS = ("hold", "defer")
_PRICED = "long_units"
"""Only the first decision about a request has it."""


class _Inputs(msgspec.Struct):
    tenant: str | None = None
    cost_units: float = 0.0
    real_units: float = 0.0
    long_units: float | None = None


class _Entry(msgspec.Struct):
    """Of a decision, what is wanted here: the rest is passed over unread, since there is one for every request."""

    id: str
    stage: str
    verdict: str
    at_s: float
    inputs: _Inputs
    shadow: str | None = None


_DECODER = msgspec.json.Decoder(_Entry)


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    refused: int = 0
    asked_units: float = 0.0
    used_units: float = 0.0

    def add(self, other: "_Sums") -> None:
        self.requests += other.requests
        self.refused += other.refused
        self.asked_units += other.asked_units
        self.used_units += other.used_units


@dataclass(slots=True)
class Activity:
    """The last seconds by tenant, and who waits.  Bounded by the constants above; written only by its reader."""

    _seconds: dict[int, dict[str, _Sums]] = field(default_factory=dict)
    _waiting: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Tenant, and when it was last heard of, the longest ago first."""

    def take(self, value: bytes, now_s: float) -> None:
        """Take a record in; one that is no decision about a tenant's request says nothing."""
        try:
            entry = _DECODER.decode(value)
        except codec.UNREADABLE:
            return
        tenant = entry.inputs.tenant
        if entry.shadow is not None or tenant is None:
            return
        if entry.stage == "settlement" and entry.verdict != "repeat":
            self._sums(entry, now_s).used_units += entry.inputs.real_units
        elif entry.stage in {"admission", "verification"}:
            self._looked_at(entry, tenant, now_s)

    def tenants(self, now_s: float, most: int) -> tuple[Tenant, ...]:
        """Those that asked for, used or wait for most, in this order, and all others as one."""
        self._forget(now_s)
        sums: defaultdict[str, _Sums] = defaultdict(_Sums)
        for by_tenant in self._seconds.values():
            for tenant, found in by_tenant.items():
                sums[tenant].add(found)
        waiting: defaultdict[str, int] = defaultdict(int)
        for tenant, _ in self._waiting.values():
            waiting[tenant] += 1
        asked_units = sum(found.asked_units for found in sums.values())
        names = sorted(
            sums.keys() | waiting.keys(),
            key=lambda name: (name == OTHERS, -sums[name].asked_units, -sums[name].used_units, -waiting[name], name),
        )
        kept = [name for name in names[:most] if name != OTHERS]
        rest = [name for name in names if name not in kept]
        rows = [_tenant(name, sums[name], waiting[name], asked_units) for name in kept]
        if rest:
            others = _Sums()
            for name in rest:
                others.add(sums[name])
            rows.append(_tenant(OTHERS, others, sum(waiting[name] for name in rest), asked_units))
        return tuple(rows)

    def _looked_at(self, entry: _Entry, tenant: str, now_s: float) -> None:
        sums, is_refused = self._sums(entry, now_s), entry.verdict == "reject"
        if entry.inputs.long_units is not None or entry.stage == "verification":
            sums.requests += 1
            sums.asked_units += entry.inputs.cost_units
        sums.refused += is_refused
        self._waiting.pop(entry.id, None)
        if entry.verdict in _WAITS and len(self._waiting) < MAX_WAITING:
            self._waiting[entry.id] = (tenant, now_s)

    def _sums(self, entry: _Entry, now_s: float) -> _Sums:
        """Those of its second and tenant; a sender's clock that is ahead does not count for longer."""
        if entry.at_s < now_s - WINDOW_S:
            return _Sums()
        by_tenant = self._seconds.setdefault(int(min(entry.at_s, now_s)), {})
        tenant = entry.inputs.tenant or OTHERS
        name = tenant if tenant in by_tenant or len(by_tenant) < MAX_TENANTS else OTHERS
        return by_tenant.setdefault(name, _Sums())

    def _forget(self, now_s: float) -> None:
        self._seconds = {second: found for second, found in self._seconds.items() if second >= now_s - WINDOW_S}
        while self._waiting and now_s - next(iter(self._waiting.values()))[1] > FORGET_S:
            del self._waiting[next(iter(self._waiting))]


def _tenant(name: str, sums: _Sums, waiting: int, asked_units: float) -> Tenant:
    return Tenant(
        tenant=name,
        requests_per_s=round(sums.requests / WINDOW_S, 3),
        asked_units_per_s=round(sums.asked_units / WINDOW_S, 3),
        asked_ratio=round(sums.asked_units / asked_units, 4) if asked_units else 0.0,
        used_units_per_s=round(sums.used_units / WINDOW_S, 3),
        refused_ratio=round(min(1.0, sums.refused / sums.requests), 4) if sums.requests else None,
        waiting=waiting,
    )
