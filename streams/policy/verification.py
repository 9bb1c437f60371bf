"""Claims to facts: what of a landing record may be believed, or why it is refused.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streams.policy import cost, identity
from streams.policy import priority as classes
from topics import codec, trace_context
from topics.codec import Claims, Event
from topics.outcomes import Outcome, Reason
from topics.records import Length, Origin, Priority, ReplyAddress, Request
from topics.settings import Model
from topics.trace_context import TraceContext

ANONYMOUS = "anonymous"
_MAX_CHOICES = 128
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings and the broker allow.  Topic names are complete, prefix included."""

    models: Mapping[str, Model]
    default_model: str
    reply_allowed: tuple[str, ...]
    """Exact names, or a prefix with `*` at the end; for tenants without a list of their own."""
    reply_default: str
    reply_partitions: Mapping[str, int]
    """Partition counts of the topics that exist."""
    max_body_bytes: int
    """A larger body would not fit into a record of ours."""
    reply_own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Allow-lists of single tenants, in the same form; what is on one is for its tenants only."""
    internal: tuple[str, ...] = ()
    """Names and patterns with `*` at one end that no allow-list can allow."""
    class_rules: classes.Rules = field(default_factory=classes.Rules)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record that gets its answer without an engine."""

    id: str
    reply: ReplyAddress
    origin: Origin
    outcome: Outcome
    reason: Reason
    detail: str
    arrived_s: float
    tenant: str = ANONYMOUS
    model: str | None = None
    grounds: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    """What it was refused on beside the record and the settings, for the decision log."""
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record is refused, in a word and in a sentence."""

    reason: Reason
    detail: str
    outcome: Outcome = Outcome.REJECTED_INVALID


def verify(event: Event, priority: Priority, length: Length, rules: Rules, now_s: float) -> Request | Refusal:
    """Turn a decoded record of the landing topic (priority, length) into a request, or say what is wrong with it."""
    claims = event.claims
    reply, problem = address(claims, rules)
    model_name = event.chat.model or rules.default_model
    model = rules.models.get(model_name)
    prompt_tokens = _prompt_tokens(event, model)
    problem = (
        _names(claims)
        or _borrowed(event)
        or problem
        or _model(model, model_name, rules)
        or _priority(claims.priority)
        or _size(event, rules)
        or _limits(event, prompt_tokens, model)
        or _deadline(claims.deadline_s, now_s)
    )
    if problem is not None:
        return refuse(event.origin, event.arrived_s, claims, rules, problem)
    return Request(
        id=claims.id or codec.fallback_id(event.origin),
        tenant=claims.tenant or ANONYMOUS,
        model=model_name,
        priority=_class(claims, priority, rules.models[model_name].kind, rules),
        length_claim=length,
        reply=reply,
        origin=event.origin,
        arrived_s=event.arrived_s,
        prompt_tokens=prompt_tokens,
        max_tokens=event.chat.output_limit(),
        choices=event.chat.choices(),
        deadline_s=claims.deadline_s,
        user_tier=claims.user_tier or "standard",
        source=claims.source or "production",
        stream=event.stream,
        traceparent=claims.traceparent,
        tracestate=claims.tracestate if claims.traceparent else None,
        template=event.chat.template(),
        body=event.body,
    )


def claimed(claims: Claims, landing: Priority) -> Priority:
    """The class that the producer asks for; the claims must have passed `verify`."""
    return Priority(claims.priority) if claims.priority else landing


def refuse(origin: Origin, arrived_s: float, claims: Claims, rules: Rules, fault: Fault) -> Refusal:
    """Answer a record that cannot be used, at the address it names if that is allowed, else at the default one.

    Without a tenant it is nobody's, never anyone's: the id that it claims may be that of another's request.
    """
    if fault.reason is Reason.BAD_IDENTITY:
        claims = identity.unproven(claims)
    reply, _ = address(claims, rules)
    tenant = claims.tenant if claims.tenant and codec.NAME.fullmatch(claims.tenant) else ANONYMOUS
    said, trace = _answerable(claims.id, origin), trace_context.of(claims)
    return Refusal(said, reply, origin, fault.outcome, fault.reason, fault.detail, arrived_s, tenant, trace=trace)


def address(claims: Claims, rules: Rules) -> tuple[ReplyAddress, Fault | None]:
    """Where the answer may go.  A forbidden or missing topic is a problem, and its report goes to the default topic."""
    own = rules.reply_own.get(claims.tenant or ANONYMOUS)
    default = rules.reply_default if own is None else next((n for n in own if "*" not in n), rules.reply_default)
    topic = claims.reply_topic or default
    problem = None
    if not _may_reply(topic, own, rules):
        allowed = ", ".join(rules.reply_allowed if own is None else own)
        problem = Fault(Reason.REPLY_TOPIC_FORBIDDEN, f"reply topic {shown(topic)} is not allowed; allowed: {allowed}")
    elif topic not in rules.reply_partitions:
        problem = Fault(Reason.REPLY_TOPIC_MISSING, f"reply topic {shown(topic)} does not exist; create it first")
    if problem is not None:
        usable = default in rules.reply_partitions and _may_reply(default, own, rules)
        topic = default if usable else rules.reply_default
    count = rules.reply_partitions.get(topic, 0)
    partition = claims.reply_partition
    in_range = problem is None and partition is not None and 0 <= partition < count
    reply = ReplyAddress(
        topic=topic,
        partition=partition if in_range else None,
        correlation_b64=codec.correlation_b64(claims.correlation),
        correlation_header=claims.correlation_header,
    )
    return reply, problem


def _may_reply(topic: str, own: tuple[str, ...] | None, rules: Rules) -> bool:
    """The default topic is open to all; internal ones to none; a listed one to its tenants, the rest to the others."""
    if topic == rules.reply_default:
        return True
    if any(matches(topic, pattern) for pattern in rules.internal):
        return False
    if own is not None:
        return any(matches(topic, pattern) for pattern in own)
    if any(matches(topic, pattern) for patterns in rules.reply_own.values() for pattern in patterns):
        return False
    return any(matches(topic, pattern) for pattern in rules.reply_allowed)


def matches(topic: str, pattern: str) -> bool:
    """Whether a pattern of an allow-list names a topic: exactly, or with `*` at one end."""
    if pattern.startswith("*"):
        return topic.endswith(pattern[1:])
    return topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern


def _class(claims: Claims, landing: Priority, model_kind: str, rules: Rules) -> Priority:
    """An empty word counts as not said, as everywhere in a record."""
    said = classes.Attributes(
        tenant=claims.tenant or ANONYMOUS,
        user_tier=claims.user_tier or None,
        source=claims.source or None,
        model_kind=model_kind,
        path=claims.path or None,
    )
    return classes.decide(claimed(claims, landing), said, rules.class_rules)


def _prompt_tokens(event: Event, model: Model | None) -> int:
    """Estimate for text and other parts; 0 while the model is not known."""
    if model is None:
        return 0
    return cost.prompt_tokens(event.chat.text_bytes(), model) + model.image_tokens * event.chat.media_parts()


def _names(claims: Claims) -> Fault | None:
    if claims.problem is not None:
        return Fault(Reason.BAD_HEADER, claims.problem)
    for what, value in (("id", claims.id), ("tenant", claims.tenant)):
        if value is not None and not codec.NAME.fullmatch(value):
            return Fault(Reason.BAD_HEADER, f"{what} must be 1 to 128 of A-Z a-z 0-9 . _ : ~ @ / + = -")
    return None


def _answerable(claimed_id: str | None, origin: Origin) -> str:
    """The id to refuse under: the claimed one, but for a malformed one and for that of another record's place."""
    if claimed_id and codec.NAME.fullmatch(claimed_id) and not codec.is_fallback_id(claimed_id, origin):
        return claimed_id
    return codec.fallback_id(origin)


def _borrowed(event: Event) -> Fault | None:
    """An id like those of records that name none would take the answer of a record that is yet to come."""
    if event.claims.id is None or not codec.is_fallback_id(event.claims.id, event.origin):
        return None
    return Fault(Reason.BAD_HEADER, "id must not look like the place of a record: those are the ids of records without")


def _model(model: Model | None, name: str, rules: Rules) -> Fault | None:
    if model is not None:
        return None
    return Fault(Reason.UNKNOWN_MODEL, f"model {shown(name)} is not known; known: {', '.join(sorted(rules.models))}")


def _priority(claim: str | None) -> Fault | None:
    if claim is None or claim in set(Priority):
        return None
    return Fault(Reason.UNKNOWN_PRIORITY, f"priority {shown(claim)} is not one of high, medium, low")


def _size(event: Event, rules: Rules) -> Fault | None:
    size_bytes = len(memoryview(event.body))
    if size_bytes <= rules.max_body_bytes:
        return None
    detail = f"the body has {size_bytes} bytes; at most {rules.max_body_bytes} fit into a record"
    return Fault(Reason.BODY_TOO_LARGE, detail, Outcome.REJECTED_TOO_LARGE)


def _limits(event: Event, prompt: int, model: Model | None) -> Fault | None:
    if model is None:
        return None
    limit = event.chat.output_limit()
    for name, choices in (("n", event.chat.n), ("best_of", event.chat.best_of)):
        if choices is not None and not 1 <= choices <= _MAX_CHOICES:
            return Fault(Reason.MAX_TOKENS, f"{name} is {choices}; it must be 1 to {_MAX_CHOICES}")
    if limit is not None and not 1 <= limit <= model.max_output_tokens:
        detail = f"max_tokens is {limit}; this model allows 1 to {model.max_output_tokens}"
        return Fault(Reason.MAX_TOKENS, detail)
    if prompt + (limit or 0) > model.context_tokens:
        detail = (
            f"about {prompt} prompt tokens and {limit or 0} output tokens exceed the context of {model.context_tokens}"
        )
        return Fault(Reason.CONTEXT_LENGTH, detail, Outcome.REJECTED_TOO_LARGE)
    return None


def _deadline(deadline_s: float | None, now_s: float) -> Fault | None:
    if deadline_s is None or deadline_s > now_s:
        return None
    detail = f"the deadline passed {now_s - deadline_s:.3f} s before the request was read"
    return Fault(Reason.DEADLINE_PASSED, detail, Outcome.REJECTED_DEADLINE)


def shown(claim: str) -> str:
    """A sender's word, short and on one line, for a message."""
    return repr(claim if len(claim) <= _SHOWN else claim[:_SHOWN] + "…")
