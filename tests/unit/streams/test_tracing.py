import pytest

from streams.budgets import Ask
from streams.cases import Case
from streams.holding import Pending
from streams.intake import Candidate
from streams.policy.admission import Admit, Hold, Reject
from streams.policy.verification import Refusal
from streams.settings import Streams, StreamsSettings
from streams.tracing import Tracing
from tests.support.builders import WALL_S, work
from topics import trace_context
from topics.outcomes import Outcome, Reason
from topics.records import Origin, ReplyAddress
from topics.trace_context import TraceContext

SENT = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1")
ORIGIN = Origin(topic="requests.medium.short", partition=0, offset=0)
REFUSAL = Refusal(
    "r2", ReplyAddress(topic="replies"), ORIGIN, Outcome.REJECTED_INVALID, Reason.UNKNOWN_MODEL, "why", WALL_S,
    trace=SENT,
)  # fmt: skip
REJECT = Reject(Outcome.REJECTED_BUDGET, Reason.BUDGET_TENANT, "words for people")


def tracing(**streams):
    return Tracing(StreamsSettings(streams=Streams(**streams)))


def pending(item=None):
    return Pending(Candidate(item or work({"traceparent": SENT.parent, "tracestate": SENT.state})))


def case(one, verdict):
    return Case(one, None, Ask("r1", ORIGIN, "replies", "acme"), verdict=verdict)


def test_without_an_sdk_a_request_stays_as_it_came():
    one = pending()
    before = one.candidate
    tracing().begin([one], WALL_S)
    tracing().end([case(one, Admit())], WALL_S, WALL_S)
    assert (one.candidate, one.span) == (before, None)


def test_a_shadow_tells_nothing(told):
    tracing(shadow="small").begin([one := pending()], WALL_S)
    assert one.span is None


def test_a_wait_in_memory_is_inside_one_span_whatever_the_looks(told):
    one = pending()
    for look in range(3):
        tracing().begin([one], WALL_S + look)
        tracing().end([case(one, Hold(0.1, Reason.FAIR_SHARE))], WALL_S + look, WALL_S + look)
    assert told() == ()
    tracing().end([case(one, Admit())], WALL_S + 3, WALL_S + 3)
    request, batch = told()
    assert (request.start_time, request.end_time) == (WALL_S * 1e9, (WALL_S + 3) * 1e9)
    assert (request.attributes["rampmeter.verdict"], request.status.is_ok) == ("admit", True)
    assert [link.context.span_id for link in batch.links] == [request.context.span_id]


@pytest.mark.parametrize(
    ("item", "verdict", "word", "error"),
    [
        (None, Admit(), "admit", None),
        (None, None, "repeat", None),
        (None, REJECT, "reject", "budget_tenant"),
        (REFUSAL, None, "refuse", "unknown_model"),
    ],
)
def test_a_span_ends_with_the_verdict_and_never_with_its_words(told, item, verdict, word, error):
    one = pending(item)
    tracing().begin([one], WALL_S)
    tracing().end([case(one, verdict)], WALL_S, WALL_S)
    request, _ = told()
    assert request.attributes["rampmeter.verdict"] == word
    assert request.attributes.get("error.type") == error
    assert "words" not in request.to_json()


@pytest.mark.parametrize("item", [None, REFUSAL])
def test_what_follows_continues_the_span_of_admission(told, item):
    one = pending(item)
    tracing().begin([one], WALL_S)
    item = one.candidate.item
    context = item.trace if isinstance(item, Refusal) else trace_context.of(item.request)
    assert context.parent[3:35] == SENT.parent[3:35]
    assert context.parent[36:52] == f"{one.span.get_span_context().span_id:016x}"
    assert context.state == SENT.state
