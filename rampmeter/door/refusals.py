"""Outcomes as HTTP: status, OpenAI's error object, and whether asking again can help.  Pure.

An engine's own words may repeat a prompt, so they are in the reply on its topic and not here.
"""

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, assert_never

from topics.errors import PipelineError
from topics.outcomes import Outcome, Reason
from topics.records import Reply

INVALID = "invalid_request_error"
LIMIT = "rate_limit_error"
SERVER = "server_error"
AUTHENTICATION = "authentication_error"
_RETRY_AFTER_S = 1.0
"""Where nothing says when it will do."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no completion."""

    status: int
    code: str
    message: str
    kind: str = INVALID
    retry_after_s: float | None = None
    """None: asking again in the same way does not help."""

    def body(self, request_id: str | None = None) -> dict[str, Any]:
        """OpenAI's error object; `id` tells where the request can be looked up."""
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return {"error": error} if request_id is None else {"error": error, "id": request_id}

    def headers(self) -> dict[str, str]:
        """What OpenAI's clients go by when they decide whether to ask again."""
        if self.retry_after_s is None:
            return {"x-should-retry": "false"}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


class Refused(PipelineError):
    """Ends the handling of a request with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def of_reply(reply: Reply) -> Refusal:
    """What a terminal reply without a completion is in HTTP."""
    said = f"{reply.outcome} ({reply.reason})"
    message = said if reply.outcome is Outcome.FAILED or reply.detail is None else f"{said}: {reply.detail}"
    match reply.outcome:
        case Outcome.REJECTED_INVALID:
            return _invalid(reply.reason, message)
        case Outcome.REJECTED_TOO_LARGE:
            return Refusal(400, "context_length_exceeded", message)
        case Outcome.REJECTED_BUDGET | Outcome.REJECTED_OVERLOAD:
            after_s = _RETRY_AFTER_S if reply.retry_after_s is None else reply.retry_after_s
            return Refusal(429, reply.outcome, message, LIMIT, after_s)
        case Outcome.REJECTED_DEADLINE | Outcome.EXPIRED:
            return Refusal(504, reply.outcome, message, SERVER)
        case Outcome.CANCELLED:
            return Refusal(409, reply.outcome, message)
        case Outcome.FAILED | Outcome.COMPLETED:
            return Refusal(502, reply.outcome, message, SERVER)
    assert_never(reply.outcome)


def _invalid(reason: Reason, message: str) -> Refusal:
    match reason:
        case Reason.UNKNOWN_MODEL:
            return Refusal(404, "model_not_found", message)
        case Reason.BAD_IDENTITY | Reason.REPLY_TOPIC_FORBIDDEN | Reason.REPLY_TOPIC_MISSING:
            return Refusal(500, reason, f"the door is not set up as admission wants it: {message}", SERVER)
        case _:
            return Refusal(400, reason, message)


def too_late(request_id: str, wait_s: float) -> Refusal:
    """The door waits no longer."""
    where = f"it goes on, see GET /v1/requests/{request_id}"
    return Refusal(504, "deadline", f"no answer within {wait_s:g} s; {where}", SERVER)


def of_status(status: int) -> Refusal:
    """What is refused without a look at what is asked for."""
    phrase = HTTPStatus(status).phrase
    message = "this is no HTTP request that can be read" if status == HTTPStatus.BAD_REQUEST else phrase
    kind = SERVER if status >= HTTPStatus.INTERNAL_SERVER_ERROR else INVALID
    return Refusal(status, phrase.lower().replace(" ", "_"), message, kind)


def unknown(what: str) -> Refusal:
    """There is no such thing, or it is another's."""
    return Refusal(404, "not_found", what)


NOBODY = Refusal(401, "invalid_api_key", "no valid API key; send it as Authorization: Bearer ...", AUTHENTICATION)
FULL = Refusal(429, "too_many_open", "too many requests are open already", LIMIT, _RETRY_AFTER_S)
DRAINING = Refusal(503, "draining", "this door closes; ask again", SERVER, _RETRY_AFTER_S)
DOWN = Refusal(503, "unavailable", "Kafka does not answer; ask again", SERVER, 5.0)
BUG = Refusal(500, "internal", "a fault of the door, see its log", SERVER)
SLOW = Refusal(408, "timeout", "the body did not arrive in time")
LARGE = Refusal(413, "body_too_large", "the body is too large")
