import re
from pathlib import Path

import pytest

from rampmeter import tracing
from rampmeter.ask import Ask, Letter
from tests.support import metrics_page
from tests.support.clock import FakeClock
from topics import tracing as spans
from topics.trace_context import TraceContext
from topics.tracing_settings import Tracing

PAGE = Path(__file__).parents[3] / "docs" / "tracing.md"
SENT = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1")


def sent(ask):
    letter = Letter("requests.medium.short", b"acme", b"{}")
    with tracing.sending(ask, letter, FakeClock()):
        pass
    return letter.headers


def test_without_an_sdk_a_record_carries_the_trace_that_its_sender_names_and_none_otherwise():
    assert sent(Ask([], trace=SENT)) == SENT.headers()
    assert sent(Ask([])) == []


def test_the_span_of_sending_continues_the_callers_span_before_what_the_request_names(told):
    with spans._tracer.start_as_current_span("the caller's") as caller:
        headers = dict(sent(Ask([], trace=SENT)))
    span = told()[0]
    assert (span.name, span.parent.span_id) == ("send requests.medium.short", caller.get_span_context().span_id)
    assert headers["traceparent"].decode().split("-")[2] == f"{span.context.span_id:016x}"


def test_what_the_broker_did_not_take_ends_in_error_without_its_words(told):
    with pytest.raises(OSError, match="words"), tracing.sending(Ask([]), Letter("t", b"", b""), FakeClock()):
        raise OSError("words")
    (span,) = told()
    assert span.attributes["error.type"] == "OSError"
    assert "words" not in span.to_json()


def test_the_page_names_settings_and_metrics_that_there_are():
    text = PAGE.read_text()
    named = re.findall(r"RAMPMETER_TRACING__(\w+)", text) + [n.upper() for n in re.findall(r"tracing\.(\w+)`", text)]
    assert named
    assert {name.lower() for name in named} <= Tracing.model_fields.keys()
    (metric,) = re.findall(r"`(gen_ai_\w+)`", text)
    assert metric in {family.name for family in metrics_page.families()}
