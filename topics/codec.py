"""Bytes to records and back.  Reads claims, believes none; never puts a sender's text into an error."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from topics import interfaces, trace_context
from topics.chat import Chat
from topics.errors import DecodeError
from topics.notes import Balances, Estimate
from topics.outcomes import Reason
from topics.records import Chunk, Control, DeadLetter, Decision, Origin, Record, Reply, Usage, Work
from topics.telemetry import Telemetry
from topics.trace_context import PARENT_HEADER, STATE_HEADER, TraceContext

Headers = Iterable[tuple[str, bytes | str | None]]

ID_HEADER = "rampmeter_id"
TOKEN_HEADER = "rampmeter_token"  # noqa: S105 - a name
CORRELATION_HEADER = "rampmeter_correlation_id"
MAX_HEADERS = 64
MAX_HEADER_BYTES = 8192
NAME = re.compile(r"[A-Za-z0-9._:~@/+=-]{1,128}")
_PARTITION_BYTES = 4
_PLACE = re.compile(r"-[0-9]+-[0-9]+\Z")

encode = msgspec.json.Encoder().encode
decode_work = msgspec.json.Decoder(Work).decode
decode_answer = msgspec.json.Decoder(Reply | Chunk).decode
decode_usage = msgspec.json.Decoder(Usage).decode
decode_decision = msgspec.json.Decoder(Decision).decode
decode_telemetry = msgspec.json.Decoder(Telemetry).decode
decode_dead_letter = msgspec.json.Decoder(DeadLetter).decode
decode_balances = msgspec.json.Decoder(Balances).decode
decode_estimate = msgspec.json.Decoder(Estimate).decode
decode_control = msgspec.json.Decoder(Control).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the decoders raise for records that are none of ours; the last for nesting as deep as the stack."""


class _Shape(msgspec.Struct):
    """What tells an envelope from a bare body.  Nothing else of a bare body is looked at: its fields are OpenAI's."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    messages: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class Envelope(msgspec.Struct):
    """The optional wrapper around a body.  A value without `body` but with `messages` is itself the body."""

    id: str | None = None
    tenant: str | None = None
    user_tier: str | None = None
    source: str | None = None
    path: str | None = None
    """Of the gateway's route, for the class rules."""
    priority: str | None = None
    deadline_s: float | None = None
    reply_topic: str | None = None
    stream: bool | None = None
    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_decode_shape = msgspec.json.Decoder(_Shape).decode
_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_chat = msgspec.json.Decoder(Chat).decode
_skip = msgspec.json.Decoder(msgspec.Raw).decode
_FLAT = 256
_SPARE_DEPTH = 128


@dataclass(frozen=True, slots=True)
class Claims:
    """What a record says of itself.  Unverified."""

    id: str | None = None
    tenant: str | None = None
    user_tier: str | None = None
    source: str | None = None
    path: str | None = None
    interface: str | None = None
    priority: str | None = None
    deadline_s: float | None = None
    reply_topic: str | None = None
    reply_partition: int | None = None
    correlation: bytes | None = None
    correlation_header: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    token: str | None = field(default=None, repr=False)
    """A `topics.tokens.Token`, sealed; whoever holds it may send what it covers."""
    tenant_is_key: bool = False
    """The tenant is only the record's key: a convention, not a statement."""
    problem: str | None = None
    """The first fault found in the headers, as a sentence."""


@dataclass(frozen=True, slots=True)
class Event:
    """A decoded landing record: claims of envelope and headers merged, the envelope first."""

    origin: Origin
    arrived_s: float
    claims: Claims
    chat: Chat
    stream: bool
    body: msgspec.Raw


_TEXT_HEADERS = {
    ID_HEADER: "id",
    "ce_id": "id",
    "rampmeter_tenant": "tenant",
    "ce_tenant": "tenant",
    "rampmeter_user_tier": "user_tier",
    "rampmeter_source": "source",
    "rampmeter_path": "path",
    interfaces.HEADER: "interface",
    TOKEN_HEADER: "token",
    "rampmeter_priority": "priority",
    "rampmeter_deadline_s": "deadline_s",
    "rampmeter_reply_topic": "reply_topic",
    "kafka_replyTopic": "reply_topic",
    PARENT_HEADER: "traceparent",
    STATE_HEADER: "tracestate",
}
_CORRELATION_HEADERS = ("kafka_correlationId", CORRELATION_HEADER)
_PARTITION_HEADERS = ("kafka_replyPartition", "rampmeter_reply_partition")


def read_headers(headers: Headers) -> Claims:
    """Collect the known headers; the last of a repeated one wins.  A fault is reported in `problem`, not raised."""
    found: dict[str, object] = {}
    problem: str | None = None
    total_bytes = 0
    for count, (name, raw) in enumerate(headers, start=1):
        value = raw.encode() if isinstance(raw, str) else raw or b""
        total_bytes += len(name) + len(value)
        if count > MAX_HEADERS or total_bytes > MAX_HEADER_BYTES:
            problem = problem or f"more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them"
            break
        fault = _read_header(name, value, found)
        problem = problem or fault
    return Claims(**found, problem=problem)  # type: ignore[arg-type]


def _read_header(name: str, value: bytes, found: dict[str, object]) -> str | None:
    if name in _CORRELATION_HEADERS:
        found["correlation"], found["correlation_header"] = value, name
    elif name in _PARTITION_HEADERS:
        return _read_partition(name, value, found)
    elif name in _TEXT_HEADERS:
        return _read_text(name, value, found)
    return None


def _read_text(name: str, value: bytes, found: dict[str, object]) -> str | None:
    target = _TEXT_HEADERS[name]
    try:
        text = value.decode()
        read = float(text) if target == "deadline_s" else text
    except UnicodeDecodeError:
        return f"header {name} is not UTF-8"
    except ValueError:
        return f"header {name} is not a number of Unix seconds"
    if name not in (PARENT_HEADER, STATE_HEADER) or trace_context.is_valid(name, text):
        found[target] = read
    return None


def _read_partition(name: str, value: bytes, found: dict[str, object]) -> str | None:
    """Spring sends four bytes, big endian; people send digits."""
    if len(value) == _PARTITION_BYTES and not value.isdigit():
        found["reply_partition"] = int.from_bytes(value, "big", signed=True)
    elif value.isdigit() and len(value) <= _PARTITION_BYTES:
        found["reply_partition"] = int(value)
    else:
        return f"header {name} is neither four bytes nor digits"
    return None


def decode_event(value: bytes | None, claims: Claims, key: bytes | None, origin: Origin, arrived_s: float) -> Event:
    """Read a landing record.  Raises DecodeError, whose text names the place of the fault and never the content."""
    if not value:
        raise DecodeError(Reason.EMPTY_VALUE, "the record has no value; send an OpenAI chat body as JSON")
    try:
        value.decode()  # the parser does not look into text that it skips
        _check_depth(value)
        shape = _decode_shape(value)
        bare = not _has(shape.body)
        if bare and not _has(shape.messages):
            raise DecodeError(Reason.WRONG_SHAPE, "neither `messages` (a bare body) nor `body` (an envelope) is there")
        envelope = Envelope() if bare else _decode_envelope(value)
        body = msgspec.Raw(value) if bare else shape.body
        chat = _decode_chat(body)
    except msgspec.ValidationError as error:
        raise DecodeError(Reason.WRONG_SHAPE, str(error)) from None
    except UNREADABLE:
        raise DecodeError(Reason.UNDECODABLE, "the value is not JSON in UTF-8, or nested too deeply") from None
    merged = _merge(envelope, claims, key)
    stream = bool(chat.stream) or bool(envelope.stream)
    return Event(origin, arrived_s, merged, chat, stream, body)


def _check_depth(value: bytes) -> None:
    """Raise RecursionError for what could be read here, and not inside of our records or further down a stack."""
    if value.count(b"[") + value.count(b"{") > _FLAT:
        _skip(b"[" * _SPARE_DEPTH + value + b"]" * _SPARE_DEPTH)


def _has(raw: msgspec.Raw) -> bool:
    return len(memoryview(raw)) > 0


def _merge(envelope: Envelope, claims: Claims, key: bytes | None) -> Claims:
    said = envelope.tenant if envelope.tenant is not None else claims.tenant or None
    return replace(
        claims,
        id=envelope.id if envelope.id is not None else claims.id,
        tenant=_tenant_of(key) if said is None else said,
        tenant_is_key=said is None,
        user_tier=envelope.user_tier or claims.user_tier,
        source=envelope.source or claims.source,
        path=envelope.path or claims.path,
        priority=envelope.priority if envelope.priority is not None else claims.priority,
        deadline_s=envelope.deadline_s if envelope.deadline_s is not None else claims.deadline_s,
        reply_topic=envelope.reply_topic or claims.reply_topic,
    )


def _tenant_of(key: bytes | None) -> str | None:
    """The key is the tenant by convention, when it reads as a name."""
    try:
        text = (key or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if NAME.fullmatch(text) else None


def fallback_id(origin: Origin) -> str:
    """The id of a request that has none: the same on every redelivery."""
    return f"{origin.topic}-{origin.partition}-{origin.offset}"


def is_fallback_id(identity: str, origin: Origin) -> bool:
    """Whether an id looks like one of those, of any landing topic that shares the prefix of `origin`."""
    prefix, word, _ = origin.topic.partition("requests.")
    return identity.startswith(prefix + word) and _PLACE.search(identity) is not None


def correlation_b64(correlation: bytes | None) -> str | None:
    """Any bytes as text, for the wire records."""
    return None if correlation is None else base64.b64encode(correlation).decode()


def answer_headers(
    request_id: str, correlation: str | None, header: str | None, trace: TraceContext | None
) -> list[tuple[str, bytes]]:
    """Headers of a reply: the id, and the sender's own correlation under its own name, unchanged."""
    headers = [(ID_HEADER, request_id.encode())]
    if correlation is not None:
        headers.append((header or CORRELATION_HEADER, base64.b64decode(correlation)))
    return headers if trace is None else headers + trace.headers()


def correlation_of(headers: Headers) -> bytes | None:
    """What a client of ours put beside its request to know the answer by."""
    for name, value in headers:
        if name == CORRELATION_HEADER:
            return value.encode() if isinstance(value, str) else value
    return None


def digest(value: bytes | None) -> str:
    """Identify a payload without keeping it."""
    return hashlib.sha256(value or b"").hexdigest()


def schemas() -> Mapping[str, dict[str, object]]:
    """JSON Schemas of what others write or read, by file name."""
    shown: tuple[type[Record | Envelope], ...] = (
        Envelope,
        Reply,
        Chunk,
        Usage,
        Decision,
        Telemetry,
        DeadLetter,
        Work,
        Control,
        Estimate,
        Balances,
    )
    return {kind.__name__.lower(): msgspec.json.schema(kind) for kind in shown}
