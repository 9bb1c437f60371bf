"""What a client posts: an OpenAI chat body, checked as far as admission would, and the request made of it.  Pure."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rampmeter.ask import Ask, new_id
from rampmeter.door.keys import Caller
from rampmeter.door.refusals import Refusal, Refused
from topics import codec, interfaces, trace_context
from topics.errors import DecodeError
from topics.records import Length, Origin, Priority
from topics.settings import Model
from topics.trace_context import PARENT_HEADER, STATE_HEADER

LONG_OUTPUT_TOKENS = 256
"""More are claimed as long; admission corrects the claim."""
_KEY = re.compile(r"[A-Za-z0-9._~@/+=-]{1,64}")
_NOWHERE = Origin(topic="", partition=0, offset=0)
_RANK = {priority: rank for rank, priority in enumerate((Priority.LOW, Priority.MEDIUM, Priority.HIGH))}


@dataclass(frozen=True, slots=True)
class Posted:
    """A body with what the headers say beside it; names are in small letters."""

    body: bytes
    headers: Mapping[str, str]


def asked(posted: Posted, caller: Caller, models: Mapping[str, Model], now_s: float, wait_s: float | None) -> Ask:
    """The request to send; raises Refused.  With `wait_s`, what cannot be answered until then is of no use."""
    try:
        event = codec.decode_event(posted.body, codec.Claims(), None, _NOWHERE, now_s)
    except DecodeError as error:
        raise Refused(Refusal(400, error.reason, error.detail)) from None
    if len(memoryview(event.body)) != len(posted.body):
        raise Refused(Refusal(400, "wrong_shape", "`body` is no field of a chat completion"))
    if event.chat.model is not None and event.chat.model not in models:
        raise Refused(Refusal(404, "model_not_found", "there is no such model; see GET /v1/models"))
    limit_s = _limit_s(posted.headers, wait_s)
    return Ask(
        messages=[],
        verbatim=posted.body,
        id=f"{caller.tenant}:{_own_id(posted.headers)}",
        tenant=caller.tenant,
        priority=_priority(posted.headers, caller),
        length=Length.LONG if (event.chat.output_limit() or 0) > LONG_OUTPUT_TOKENS else Length.SHORT,
        stream=event.stream,
        deadline_s=None if limit_s is None else now_s + limit_s,
        user_tier=caller.user_tier,
        source=caller.source,
        interface=interfaces.HTTP,
        trace=trace_context.of(codec.read_headers(_traced(posted.headers))),
    )


def _traced(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, headers[name]) for name in (PARENT_HEADER, STATE_HEADER) if name in headers]


def _own_id(headers: Mapping[str, str]) -> str:
    key = headers.get("idempotency-key")
    if key is None:
        return new_id()
    if not _KEY.fullmatch(key):
        raise Refused(Refusal(400, "idempotency_key", "Idempotency-Key must be 1 to 64 of A-Za-z0-9._~@/+=-"))
    return key


def _priority(headers: Mapping[str, str], caller: Caller) -> Priority:
    named = headers.get("rampmeter-priority")
    if named is None:
        return caller.priority
    if named not in set(Priority):
        raise Refused(Refusal(400, "unknown_priority", "rampmeter-priority must be high, medium or low"))
    return min(Priority(named), caller.priority, key=_RANK.__getitem__)


def _limit_s(headers: Mapping[str, str], wait_s: float | None) -> float | None:
    named = headers.get("rampmeter-timeout-s")
    if named is None:
        return wait_s
    try:
        limit_s = float(named)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise Refused(Refusal(400, "timeout", "rampmeter-timeout-s must be a number of seconds above 0"))
    return limit_s if wait_s is None else min(limit_s, wait_s)
