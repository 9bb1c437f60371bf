import subprocess
import sys

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.builders import WALL_S, work
from tests.support.collector import Collector
from topics import trace_context, tracing
from topics.errors import ConfigError
from topics.settings import Settings, load
from topics.trace_context import TraceContext
from topics.tracing_settings import Tracing

SENT = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1")


def begin(parent=None, links=(), **attributes):
    return tracing.begin("process x", SpanKind.CONSUMER, WALL_S, attributes, parent, links)


def test_without_an_sdk_nobody_listens_and_a_context_passes_as_it_is():
    assert not tracing.listens()
    assert tracing.context_of(begin(SENT)) == SENT
    assert tracing.context_of(begin()) is None


def test_a_span_continues_its_parent_at_the_times_of_our_clock(told):
    span = begin(SENT, here=1, absent=None)
    tracing.end(span, WALL_S + 2, {"there": True, "gone": None})
    (seen,) = told()
    assert f"00-{seen.context.trace_id:032x}-{seen.parent.span_id:016x}-01" == SENT.parent
    assert (seen.start_time, seen.end_time) == (WALL_S * 1e9, (WALL_S + 2) * 1e9)
    assert dict(seen.attributes) == {"here": 1, "there": True}
    assert seen.status.status_code is StatusCode.UNSET


def test_what_is_continued_carries_the_span_and_the_senders_state(told):
    span = begin(SENT)
    context = trace_context.of(tracing.continued(work(), span).request)
    assert context.parent.split("-")[2] == f"{span.get_span_context().span_id:016x}"
    assert context.state == "a=1"


def test_an_end_in_error_says_why_in_a_word(told):
    tracing.end(begin(), WALL_S, error="unknown_model")
    (seen,) = told()
    assert (seen.status.status_code, seen.status.description) == (StatusCode.ERROR, None)
    assert seen.attributes["error.type"] == "unknown_model"


def test_no_span_is_a_child_of_what_happens_to_be_current(told):
    with tracing._tracer.start_as_current_span("another request's"):
        assert begin().parent is None


def test_the_endpoint_is_an_http_address_without_its_path(monkeypatch):
    monkeypatch.setenv("RAMPMETER_TRACING__ENDPOINT", "http://collector:4318/")
    assert load(Settings).tracing.endpoint == "http://collector:4318"
    monkeypatch.setenv("RAMPMETER_TRACING__ENDPOINT", "collector:4317")
    with pytest.raises(ConfigError, match="RAMPMETER_TRACING__ENDPOINT"):
        load(Settings)


def test_who_listens_does_not_change_what_decisions_were_made_under():
    assert Settings(tracing=Tracing(endpoint="http://collector:4318")).short_hash() == Settings().short_hash()


def test_a_missing_sdk_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "topics.tracing_sdk", raising=False)
    settings = Settings(tracing=Tracing(endpoint="http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"pip install 'rampmeter\[otel\]'"), tracing.telling(settings, "test"):
        pass


TELLING = """
import sys
from opentelemetry.trace import SpanKind
from topics import tracing
from topics.settings import Settings
from topics.trace_context import TraceContext
settings = Settings(tracing={"endpoint": sys.argv[1], "sample_ratio": float(sys.argv[2]), "export_timeout_s": 0.5})
with tracing.telling(settings, "test-service", "one"):
    for flag in ("00", "01"):
        parent = TraceContext(f"00-{'f' * 32}-{'b' * 16}-{flag}")
        tracing.end(tracing.begin(f"with {flag}", SpanKind.INTERNAL, 1.0, {}, parent), 2.0)
    tracing.end(tracing.begin("root", SpanKind.INTERNAL, 1.0, {}), 2.0)
"""


def run(endpoint, ratio):
    return subprocess.run(
        [sys.executable, "-c", TELLING, endpoint, str(ratio)], capture_output=True, text=True, timeout=60, check=True
    )


@pytest.mark.parametrize(("ratio", "names"), [(1.0, {"with 01", "root"}), (0.0, set())])
def test_what_is_told_is_sent_at_the_end_and_a_senders_flag_only_lowers_how_much(ratio, names):
    with Collector() as collector:
        run(collector.url, ratio)
    assert {span.name for span in collector.spans} == names
    assert {span.service for span in collector.spans} <= {"test-service"}


def test_a_collector_that_is_away_does_not_hold_up_the_end():
    assert "Traceback" not in run("http://127.0.0.1:9", 1.0).stderr
