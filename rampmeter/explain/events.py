"""The steps of a request, and the timeline that they make.  Pure; no field holds a prompt or an engine's words."""

from enum import StrEnum

import msgspec

from topics.timing import Waits

Field = float | int | str | bool | None


class Step(StrEnum):
    """What can happen to a request; of what happens in one moment, the earlier in this list comes first."""

    RECEIVED = "received"
    REFUSED = "refused"
    PRICED = "priced"
    HELD = "held"
    DEFERRED = "deferred"
    REJECTED = "rejected"
    ADMITTED = "admitted"
    PROMOTED = "promoted"
    PLACED = "placed"
    STARTED = "started"
    FIRST_TOKEN = "first_token"  # noqa: S105 - of an answer
    CANCEL_ORDERED = "cancel_ordered"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ENDED = "ended"
    RETRIED = "retried"
    ANSWERED = "answered"
    REPEATED = "repeated"
    DEAD_LETTERED = "dead_lettered"
    SETTLED = "settled"


ORDER = {step: number for number, step in enumerate(Step)}


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step: when, what it was, who did it, and the record that shows it."""

    at_s: float
    step: Step
    what: str
    by: str | None = None
    record: str | None = None
    facts: dict[str, Field] = {}
    after_s: float | None = None
    """Since the step before; absent on the first."""
    times: int = 1
    """How often it was said in a row."""


class Price(msgspec.Struct, frozen=True):
    """What a request was expected to cost when it came, and of what that is made up."""

    cost_units: float
    coefficient: float | None
    prompt_tokens: int
    """As its size says, corrected by what its like were wrong by."""
    expected_output_tokens: int
    input_units: float | None
    """The prompt's part; None when the settings of this command have other prices than the worker had."""
    output_units: float | None
    length: str
    long_units: float | None
    """Above it a request was long then, by its cost."""
    is_learned: bool
    """Whether what its like needed was known."""


class Companion(msgspec.Struct, frozen=True):
    """Another request that was in the same engine at the same time."""

    id: str
    consumer: str
    together_s: float


class Timeline(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that the log says of one request id."""

    id: str
    state: str
    """Its outcome, or `open`."""
    events: list[Event]
    reason: str | None = None
    tenant: str | None = None
    model: str | None = None
    priority: str | None = None
    length: str | None = None
    pool: str | None = None
    attempts: int = 0
    cost_units: float | None = None
    price: Price | None = None
    waits: Waits | None = None
    batched_with: list[Companion] = []
    """Those with whom it shared an engine for longest."""
    batched: int = 0
    """How many there were in all."""
    missing: list[str] = []
    """What should be in the log by now and is not."""
