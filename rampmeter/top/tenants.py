"""What tenants ask for and use, from the decision log.  Pure; time is an argument."""

from collections import defaultdict
from dataclasses import dataclass, field

from rampmeter import spending
from rampmeter.spending import Entry, Spend
from rampmeter.top.snapshot import Tenant

WINDOW_S = 30
"""Too small: one request is a wave.  Too large: a flood is noticed late."""
FORGET_S = 900.0
"""Who waits and was not heard of for this long has an end that was not seen here."""
MAX_TENANTS = 5_000
"""In one second; what the others ask for is that of `OTHERS`."""
MAX_WAITING = 200_000
OTHERS = "(others)"
_WAITS = ("hold", "defer")


@dataclass(slots=True)
class Activity:
    """The last seconds by tenant, and who waits.  Bounded by the constants above; written only by its reader."""

    _seconds: dict[int, dict[str, Spend]] = field(default_factory=dict)
    _waiting: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Tenant, and when it was last heard of, the longest ago first."""

    def take(self, value: bytes, now_s: float) -> None:
        """Take a record in; one that is no decision about a tenant's request says nothing."""
        entry = spending.read(value)
        if entry is None or entry.inputs.tenant is None:
            return
        is_looked_at = entry.stage in {"admission", "verification"}
        spend = spending.of(entry)
        if spend is not None or is_looked_at:
            self._sums(entry, now_s).add(spend or Spend())
        if is_looked_at:
            self._waiting.pop(entry.id, None)
            if entry.verdict in _WAITS and len(self._waiting) < MAX_WAITING:
                self._waiting[entry.id] = (entry.inputs.tenant, now_s)

    def tenants(self, now_s: float, most: int) -> tuple[Tenant, ...]:
        """Those that asked for, used or wait for most, in this order, and all others as one."""
        self._forget(now_s)
        sums: defaultdict[str, Spend] = defaultdict(Spend)
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
            others = Spend()
            for name in rest:
                others.add(sums[name])
            rows.append(_tenant(OTHERS, others, sum(waiting[name] for name in rest), asked_units))
        return tuple(rows)

    def _sums(self, entry: Entry, now_s: float) -> Spend:
        """Those of its second and tenant; a sender's clock that is ahead does not count for longer."""
        if entry.at_s < now_s - WINDOW_S:
            return Spend()
        by_tenant = self._seconds.setdefault(int(min(entry.at_s, now_s)), {})
        tenant = entry.inputs.tenant or OTHERS
        name = tenant if tenant in by_tenant or len(by_tenant) < MAX_TENANTS else OTHERS
        return by_tenant.setdefault(name, Spend())

    def _forget(self, now_s: float) -> None:
        self._seconds = {second: found for second, found in self._seconds.items() if second >= now_s - WINDOW_S}
        while self._waiting and now_s - next(iter(self._waiting.values()))[1] > FORGET_S:
            del self._waiting[next(iter(self._waiting))]


def _tenant(name: str, sums: Spend, waiting: int, asked_units: float) -> Tenant:
    return Tenant(
        tenant=name,
        requests_per_s=round(sums.requests / WINDOW_S, 3),
        asked_units_per_s=round(sums.asked_units / WINDOW_S, 3),
        asked_ratio=round(sums.asked_units / asked_units, 4) if asked_units else 0.0,
        used_units_per_s=round(sums.used_units / WINDOW_S, 3),
        refused_ratio=round(min(1.0, sums.rejected / sums.requests), 4) if sums.requests else None,
        waiting=waiting,
    )
