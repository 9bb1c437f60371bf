import json

import pytest

from rampmeter.door import events, refusals
from topics.outcomes import Outcome, Reason
from topics.records import Reply


@pytest.mark.parametrize(
    ("outcome", "reason", "status", "code"),
    [
        (Outcome.REJECTED_INVALID, Reason.MAX_TOKENS, 400, "max_tokens"),
        (Outcome.REJECTED_INVALID, Reason.UNKNOWN_MODEL, 404, "model_not_found"),
        (Outcome.REJECTED_INVALID, Reason.BAD_IDENTITY, 500, "bad_identity"),
        (Outcome.REJECTED_TOO_LARGE, Reason.CONTEXT_LENGTH, 400, "context_length_exceeded"),
        (Outcome.REJECTED_BUDGET, Reason.BUDGET_TENANT, 429, "rejected_budget"),
        (Outcome.REJECTED_OVERLOAD, Reason.LANE_WAIT, 429, "rejected_overload"),
        (Outcome.REJECTED_DEADLINE, Reason.DEADLINE_UNREACHABLE, 504, "rejected_deadline"),
        (Outcome.EXPIRED, Reason.DEADLINE_PASSED, 504, "expired"),
        (Outcome.CANCELLED, Reason.CANCELLED, 409, "cancelled"),
        (Outcome.FAILED, Reason.ENGINE_ERROR, 502, "failed"),
    ],
)
def test_every_outcome_has_a_status(outcome, reason, status, code):
    refusal = refusals.of_reply(Reply(id="x", outcome=outcome, reason=reason, detail="detail"))
    assert (refusal.status, refusal.code) == (status, code)


def test_only_who_may_ask_again_is_told_when():
    busy = Reply(id="x", outcome=Outcome.REJECTED_BUDGET, retry_after_s=2.2)
    assert refusals.of_reply(busy).headers() == {"Retry-After": "3"}
    assert refusals.of_reply(Reply(id="x", outcome=Outcome.FAILED)).headers() == {"x-should-retry": "false"}


def test_an_engines_words_are_not_repeated():
    refusal = refusals.of_reply(Reply(id="x", outcome=Outcome.FAILED, detail="your prompt SENTINEL is bad"))
    assert "SENTINEL" not in json.dumps(refusal.body("x"))


def test_an_answer_without_pieces_is_one_chunk():
    body = {
        "id": "c", "object": "chat.completion", "usage": {"total_tokens": 3},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    }  # fmt: skip
    assert json.loads(events.whole(json.dumps(body).encode())) == {
        "id": "c", "object": "chat.completion.chunk", "usage": {"total_tokens": 3},
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    }  # fmt: skip
