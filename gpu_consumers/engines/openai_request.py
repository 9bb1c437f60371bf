"""What is sent to an OpenAI-compatible server, and what may be told of its refusals.  Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from gpu_consumers.engine import Job
from topics.errors import EngineError

MAX_DETAIL_CHARS = 200
_WINDOW_CHARS = 12
"""A run of so many characters of the prompt within a message counts as its repetition."""
_NOT_TEXT = frozenset({"role", "type", "name", "tool_call_id", "id"})
_TEXT_FIELDS = ("messages", "prompt", "input", "tools", "functions", "response_format", "guided_json", "stop")
RETRYABLE = frozenset({408, 425, 429})
BUSY = frozenset({429, 503})
"""The server did not take the job."""
LEAST_WAIT_S, UNSAID_WAIT_S = 0.1, 1.0
"""Pause after a busy server that says "now", or nothing.  Too small: a busy loop.  Too large: it idles for as long."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A body ready to send, and whether the sender itself asked for the usage chunk."""

    body: bytes
    wants_usage: bool


def prepare(job: Job, model_names: Mapping[str, str]) -> Outgoing:
    """Switch streaming and its usage on; every other field passes byte for byte.

    The model is written only when it is missing or has another name at the server.
    """
    try:
        fields = _decode_fields(job.body)
        options: dict[str, Any] = _decode(fields.get("stream_options", b"null")) or {}
        wants_usage = bool(options.get("include_usage"))
        fields["stream_options"] = msgspec.Raw(_encode({**options, "include_usage": True}))
    except (msgspec.MsgspecError, AttributeError, TypeError) as error:
        raise EngineError("the body is not an OpenAI chat request", retryable=False) from error
    fields["stream"] = msgspec.Raw(b"true")
    if "model" not in fields or job.model in model_names:
        fields["model"] = msgspec.Raw(_encode(model_names.get(job.model, job.model)))
    return Outgoing(_encode(fields), wants_usage)


def smallest(model: str) -> bytes:
    """The body of a request that asks for one token, to see whether an engine answers."""
    return _encode({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})


def refusal(status: int, answer: bytes, request_body: bytes) -> EngineError:
    """The error for an HTTP status that is not 200."""
    told = f"the server answered {status}: {safe(_message(answer), request_body)}"
    return EngineError(told, retryable=status in RETRYABLE or status >= 500, untried=status in BUSY)


def wait_s(retry_after: str | None, now_s: float) -> float:
    """How long a Retry-After asks to wait, in seconds or until a date; `now_s` is wall time."""
    said = (retry_after or "").strip()
    if said.isascii() and said.isdigit():
        return max(LEAST_WAIT_S, float(said[:9]))
    try:
        return max(LEAST_WAIT_S, parsedate_to_datetime(said).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return UNSAID_WAIT_S


def broken_stream(error: Any, request_body: bytes) -> EngineError:
    """The error for an error object within a stream."""
    code = error.get("code") if isinstance(error, dict) else None
    retryable = not (isinstance(code, int) and 400 <= code < 500 and code not in RETRYABLE)
    told = safe(_message(_encode({"error": error})), request_body)
    return EngineError(f"the server broke off: {told}", retryable=retryable)


def safe(message: str, request_body: bytes) -> str:
    """The message, cut and on one line, unless it repeats text of the request."""
    message = " ".join(message.split())[:MAX_DETAIL_CHARS]
    if not message:
        return "no message"
    if _repeats(message, request_body):
        return "its message is withheld, since it repeats text of the request"
    return message


def _message(answer: bytes) -> str:
    try:
        data = _decode(answer)
    except msgspec.MsgspecError:
        return answer[: 4 * MAX_DETAIL_CHARS].decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(data, dict) and data.get(name) is not None:
            data = data[name]
    return data if isinstance(data, str) else _encode(data).decode()


def _repeats(message: str, request_body: bytes) -> bool:
    try:
        fields = _decode(request_body)
    except msgspec.MsgspecError:
        return True
    windows = {message[i : i + _WINDOW_CHARS] for i in range(max(0, len(message) - _WINDOW_CHARS) + 1)}
    for text in _texts([fields.get(name) for name in _TEXT_FIELDS]):
        flat = " ".join(text.split())
        if len(flat) < _WINDOW_CHARS:
            if re.search(rf"(?<!\w){re.escape(flat)}(?!\w)", message):
                return True
        elif any(window in flat for window in windows):
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT:
                yield from _texts(item)
