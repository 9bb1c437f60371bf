"""What a decision says a tenant asked for, was refused or used.  Pure."""

import msgspec

from topics import codec


class Inputs(msgspec.Struct):
    """Of most decisions little is wanted, and there is one for every request."""

    tenant: str | None = None
    cost_units: float | None = None
    real_units: float | None = None
    long_units: float | None = None
    """There in the first look at a request only."""


class Entry(msgspec.Struct):
    """Of a decision, what is wanted here: the rest is passed over unread."""

    id: str
    stage: str
    verdict: str
    at_s: float
    inputs: Inputs
    shadow: str | None = None


class Spend(msgspec.Struct):
    """Of a tenant, within some time."""

    asked_units: float = 0.0
    used_units: float = 0.0
    requests: int = 0
    rejected: int = 0

    def add(self, other: "Spend") -> None:
        """Add another one's figures."""
        self.asked_units += other.asked_units
        self.used_units += other.used_units
        self.requests += other.requests
        self.rejected += other.rejected


_ENTRY = msgspec.json.Decoder(Entry)


def read(value: bytes) -> Entry | None:
    """A record of the decision log; None for a shadow's, and for one that none of ours can have written."""
    try:
        entry = _ENTRY.decode(value)
    except codec.UNREADABLE:
        return None
    return entry if entry.shadow is None else None


def of(entry: Entry) -> Spend | None:
    """What it adds to its tenant's; None when that is nothing."""
    inputs = entry.inputs
    if entry.stage == "settlement" and entry.verdict != "repeat":
        return Spend(used_units=inputs.real_units or 0.0)
    is_first = entry.stage == "verification" or (entry.stage == "admission" and inputs.long_units is not None)
    is_rejected = entry.stage in ("admission", "verification") and entry.verdict == "reject"
    if not is_first and not is_rejected:
        return None
    asked_units = (inputs.cost_units or 0.0) if is_first else 0.0
    return Spend(asked_units=asked_units, requests=int(is_first), rejected=int(is_rejected))
