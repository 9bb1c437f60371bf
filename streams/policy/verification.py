"""Claims to facts: what of a landing record may be believed, or why it is refused.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from streams.policy import cost
from topics import codec
from topics.codec import Claims, Event
from topics.outcomes import Outcome, Reason
from topics.records import Length, Origin, Priority, ReplyAddress, Request
from topics.settings import Model

ANONYMOUS = "anonymous"
_MAX_CHOICES = 128
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings and the broker allow.  Topic names are complete, prefix included."""

    models: Mapping[str, Model]
    default_model: str
    reply_allowed: tuple[str, ...]
    """Exact names, or a prefix with `*` at the end."""
    reply_default: str
    reply_partitions: Mapping[str, int]
    """Partition counts of the topics that exist."""
    max_body_bytes: int
    """A larger body would not fit into a record of ours."""


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
    tenant: str | None = None
    model: str | None = None


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
    identity = claims.id or codec.fallback_id(event.origin)
    model_name = event.chat.model or rules.default_model
    model = rules.models.get(model_name)
    problem = (
        _names(claims)
        or problem
        or _model(model, model_name, rules)
        or _priority(claims.priority)
        or _size(event, rules)
        or _limits(event, model)
        or _deadline(claims.deadline_s, now_s)
    )
    if problem is not None:
        return refuse(event.origin, event.arrived_s, claims, rules, problem)
    return Request(
        id=identity,
        tenant=claims.tenant or ANONYMOUS,
        model=model_name,
        priority=Priority(claims.priority) if claims.priority else priority,
        length_claim=length,
        reply=reply,
        origin=event.origin,
        arrived_s=event.arrived_s,
        prompt_tokens=cost.prompt_tokens(event.chat.text_bytes(), rules.models[model_name]),
        max_tokens=event.chat.output_limit(),
        choices=event.chat.n or 1,
        deadline_s=claims.deadline_s,
        user_tier=claims.user_tier or "standard",
        source=claims.source or "production",
        stream=event.stream,
        traceparent=claims.traceparent,
        body=event.body,
    )


def refuse(origin: Origin, arrived_s: float, claims: Claims, rules: Rules, fault: Fault) -> Refusal:
    """Answer a record that cannot be used, at the address it names if that is allowed, else at the default one."""
    reply, _ = address(claims, rules)
    identity = claims.id if claims.id and codec.NAME.fullmatch(claims.id) else codec.fallback_id(origin)
    tenant = claims.tenant if claims.tenant and codec.NAME.fullmatch(claims.tenant) else None
    return Refusal(identity, reply, origin, fault.outcome, fault.reason, fault.detail, arrived_s, tenant)


def address(claims: Claims, rules: Rules) -> tuple[ReplyAddress, Fault | None]:
    """Where the answer may go.  A forbidden or missing topic is a problem, and its report goes to the default topic."""
    topic = claims.reply_topic or rules.reply_default
    problem = None
    if not any(_matches(topic, pattern) for pattern in rules.reply_allowed):
        allowed = ", ".join(rules.reply_allowed)
        problem = Fault(Reason.REPLY_TOPIC_FORBIDDEN, f"reply topic {shown(topic)} is not allowed; allowed: {allowed}")
    elif topic not in rules.reply_partitions:
        problem = Fault(Reason.REPLY_TOPIC_MISSING, f"reply topic {shown(topic)} does not exist; create it first")
    if problem is not None:
        topic = rules.reply_default
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


def _matches(topic: str, pattern: str) -> bool:
    return topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern


def _names(claims: Claims) -> Fault | None:
    if claims.problem is not None:
        return Fault(Reason.BAD_HEADER, claims.problem)
    for what, value in (("id", claims.id), ("tenant", claims.tenant)):
        if value is not None and not codec.NAME.fullmatch(value):
            return Fault(Reason.BAD_HEADER, f"{what} must be 1 to 128 of A-Z a-z 0-9 . _ : ~ @ / + = -")
    return None


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


def _limits(event: Event, model: Model | None) -> Fault | None:
    if model is None:
        return None
    limit, choices = event.chat.output_limit(), event.chat.n
    if choices is not None and not 1 <= choices <= _MAX_CHOICES:
        return Fault(Reason.MAX_TOKENS, f"n is {choices}; it must be 1 to {_MAX_CHOICES}")
    if limit is not None and not 1 <= limit <= model.max_output_tokens:
        detail = f"max_tokens is {limit}; this model allows 1 to {model.max_output_tokens}"
        return Fault(Reason.MAX_TOKENS, detail)
    prompt = cost.prompt_tokens(event.chat.text_bytes(), model)
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
