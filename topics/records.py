"""The records on the wire, frozen.  Optional fields may be added; a meaning never changes.

Times are Unix seconds (`*_s`), costs are cost units (one millisecond of the reference engine).
"""

from enum import StrEnum

import msgspec

from topics.bounds import Count, Factor, Ordinal, Seconds, TokenSeconds, Units, UnixSeconds
from topics.outcomes import Outcome, Reason
from topics.timing import Timing, Waits


class Priority(StrEnum):
    """The class of a request.  Aging never rewrites it."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Tier(StrEnum):
    """Where a request queues: its priority, or `aged` for the copy of one that has waited too long."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    AGED = "aged"


class Length(StrEnum):
    """Length class by predicted engine time."""

    SHORT = "short"
    LONG = "long"


class Role(StrEnum):
    """The length that a consumer is there for; `general` is for both."""

    GENERAL = "general"
    SHORT = "short"
    LONG = "long"


def no_body() -> msgspec.Raw:
    """Stand for a body that is not there."""
    return msgspec.Raw(b"null")


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Common shape of all records: defaults stay off the wire; `frozen` and `kw_only` are not inherited."""


class Origin(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Where on the landing topics a request came in.  Together with the id it tells a redelivery from a repeat."""

    topic: str
    partition: int
    offset: int

    @property
    def place(self) -> str:
        """As one word, as the ledger and the decision log keep it."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class ReplyAddress(Record, frozen=True, kw_only=True):
    """Where the answer goes; already verified."""

    topic: str
    partition: int | None = None
    correlation_b64: str | None = None
    """The sender's correlation id, any bytes, echoed unchanged."""
    correlation_header: str | None = None
    """The header name that the sender used for it, echoed too."""


class Request(Record, frozen=True, kw_only=True):
    """A verified request: what the policies see.  `body` is the sender's OpenAI body, byte for byte."""

    id: str
    tenant: str
    model: str
    priority: Priority
    length_claim: Length
    reply: ReplyAddress
    origin: Origin
    arrived_s: float
    prompt_tokens: int
    max_tokens: int | None = None
    choices: int = 1
    deadline_s: float | None = None
    user_tier: str = "standard"
    source: str = "production"
    stream: bool = False
    traceparent: str | None = None
    tracestate: str | None = None
    template: str = ""
    """Digest of what is the same in all requests of one kind (system prompt and tools); history is kept by it."""
    body: msgspec.Raw = msgspec.field(default_factory=no_body)


class Price(Record, frozen=True, kw_only=True, omit_defaults=False):
    """What a request is expected to cost, and the class that follows from it."""

    pool: str
    length: Length
    expected_output_tokens: Count
    cost_units: Units
    coefficient: Factor | None = None
    """The model's coefficient at admission, by which the request is settled too; None: that of the settings."""
    kv_token_s: TokenSeconds = 0.0
    """Expected tokens in the KV cache times the seconds they stay there."""
    service_s: Seconds | None = None
    """Expected time in the engine; None while nothing is known of its like."""


class Work(Record, frozen=True, kw_only=True):
    """A priced request on its way: the value on lanes, deferred and retries topics."""

    request: Request
    price: Price
    attempt: Ordinal = 1
    deferrals: Count = 0
    admitted_s: UnixSeconds | None = None
    wait_estimate_s: float | None = None
    """Predicted wait on the lane when it was admitted; None while the pool's drain rate is unknown."""
    position: int | None = None
    """Requests of its lane that were ahead of it when it was admitted."""
    unreserved: bool = False
    """Admitted while Redis was away: no budget holds anything for it, so the real cost is charged at its end."""


class Tokens(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Measured tokens of one attempt."""

    prompt: Count
    output: Count
    cached: Count = 0
    """Of the prompt tokens, those that the engine took from its prefix cache."""

    def kv_token_s(self, service_s: float) -> float:
        """Tokens in the KV cache times their seconds there: the prompt's all the time, the output's half of it."""
        return (self.prompt + self.output / 2) * service_s


class Chunk(Record, frozen=True, kw_only=True, tag_field="type", tag="chunk"):
    """One streamed piece of an answer; `data` is the engine's OpenAI chunk.

    After a failure the answer begins again with `seq` 0, mostly of another attempt or consumer, and what came is void.
    """

    id: str
    seq: int
    data: msgspec.Raw
    attempt: int = 1
    consumer: str | None = None


class Reply(Record, frozen=True, kw_only=True, tag_field="type", tag="reply"):
    """The one terminal answer of a request."""

    id: str
    outcome: Outcome
    reason: Reason = Reason.NONE
    detail: str | None = None
    retry_after_s: float | None = None
    tenant: str | None = None
    model: str | None = None
    priority: Priority | None = None
    length: Length | None = None
    pool: str | None = None
    cost_units: float | None = None
    tokens: Tokens | None = None
    timing: Timing | None = None
    waits: Waits | None = None
    attempt: int = 1
    consumer: str | None = None
    """Whose answer it is: its chunks are those with the same attempt and consumer."""
    chunks: Count | None = None
    """How many of them there are."""
    wait_estimate_s: float | None = None
    """Predicted wait on the lane: at admission, or what made a rejection."""
    position: int | None = None
    """Requests of its lane that were ahead of it then."""
    repeat: bool = False
    """True on a second copy of the first answer, sent to one who asked again with the same id."""
    body: msgspec.Raw = msgspec.field(default_factory=no_body)
    """The engine's OpenAI response, byte for byte."""
    origin: Origin | None = None
    """The landing record that this answers: what `audit` reconciles by."""


class Usage(Record, frozen=True, kw_only=True):
    """What an attempt really cost: settles the reservation and feeds the windowed tables."""

    id: str
    tenant: str
    pool: str
    model: str
    priority: Priority
    length: Length
    outcome: Outcome
    attempt: Ordinal
    reserved_units: Units
    tokens: Tokens
    finished_s: UnixSeconds
    consumer: str
    engine_s: Seconds | None = None
    """Share of engine time; absent when the engine could not say."""
    coefficient: Factor | None = None
    """By which it was priced; None: that of the settings."""
    template: str = ""
    expected_prompt_tokens: Count | None = None
    expected_output_tokens: Count | None = None
    service_s: Seconds | None = None
    """From the start of the attempt to its end, waiting for nothing; absent for what never ran."""
    waited_s: Seconds | None = None
    """From the arrival of the request to that start; absent for what never ran."""
    kv_token_s: TokenSeconds | None = None
    expected_kv_token_s: TokenSeconds | None = None
    partial: bool = False
    """A failed attempt that is tried again: what it used is charged, the reservation stays."""


class Decision(Record, frozen=True, kw_only=True):
    """One decision with its inputs; no prompt text, ever."""

    id: str
    stage: str
    verdict: str
    reason: str
    at_s: float
    by: str
    inputs: dict[str, float | int | str | bool | None] = {}
    settings_hash: str | None = None
    shadow: str | None = None
    """Name of the shadow that decided so and carried nothing out; None: it was carried out."""


class ControlAction(StrEnum):
    """What a control record asks for."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    LIMITS = "limits"
    DRAIN = "drain"


class ControlKind(StrEnum):
    """What a control record is about."""

    REQUEST = "request"
    TENANT = "tenant"
    POOL = "pool"
    CLASS = "class"
    GLOBAL = "global"
    CONSUMER = "consumer"


class Control(Record, frozen=True, kw_only=True, omit_defaults=False):
    """An order of an operator or a client; the last of a key (`topics.orders.key_of`) counts."""

    id: str
    """Of the order, for the decision log."""
    action: ControlAction
    kind: ControlKind
    name: str
    """Request id, tenant, pool, class or GPU consumer; `all` for the global budget."""
    at_s: float
    by: str
    refill_units_per_s: float | None = None
    """New limits of a budget; None leaves that one as it is in the settings."""
    burst_s: float | None = None
    tenant: str | None = None
    """Whose request is cancelled, when its sender says so; it must match the request's."""


class DeadLetter(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A reference to a record that could not be used: never its text."""

    topic: str
    partition: int
    offset: int
    reason: Reason
    detail: str
    sha256: str
    size_bytes: int
    at_s: float
    by: str
    id: str | None = None
