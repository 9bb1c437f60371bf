"""What is compared, from what was seen of the real run and from the simulator's jobs."""

import json

import pytest

from rampmeter import reality_check, workload
from rampmeter.options import CLOCK
from rampmeter.output import Output
from rampmeter.reality_check import Asked, Figure, RealityCheck, Span
from rampmeter.results import Answer, Observed
from topics.outcomes import Outcome
from topics.records import Length
from topics.timing import Waits

SHORT, LONG = Length.SHORT, Length.LONG


def asked(tmp_path, count=60):
    return Asked(workload.generate_count(count, seed=2), 0.9, 2, tmp_path)


def observed(**answers):
    return Observed(dict.fromkeys(answers, 100.0), {i: a for i, a in answers.items() if a is not None}, duplicates=0)


def answer(first_token_s=100.9, received_s=103.0, **fields):
    waits = Waits(queued_s=0.1, admitted_s=0.05, lane_s=0.25, engine_s=2.0, first_token_s=0.4)
    return Answer(Outcome.COMPLETED, SHORT, received_s, first_token_s, waits=waits, **fields)


def test_a_served_requests_time_to_its_first_token_is_the_sum_of_its_parts():
    (span,) = reality_check.spans_of(observed(a=answer()))
    assert (span.length, span.ttft_s, span.e2e_s) == (SHORT, pytest.approx(0.9), pytest.approx(3.0))
    # What it waited before its record arrived counts as waiting for admission.
    assert (span.queued_s, span.lane_s, span.prefill_s) == (pytest.approx(0.2), pytest.approx(0.3), 0.4)
    assert span.queued_s + span.lane_s + span.prefill_s == pytest.approx(span.ttft_s)


def test_what_was_lost_or_refused_has_no_times_and_is_not_in_time():
    refused = Answer(Outcome.REJECTED_BUDGET, LONG, 100.1)
    spans = reality_check.spans_of(observed(a=answer(), b=None, c=refused))
    assert [(span.length, span.ttft_s) for span in spans[1:]] == [(None, None), (LONG, None)]
    assert reality_check.figures_of(spans)["goodput_ratio"] == pytest.approx(1 / 3, abs=1e-4)


def test_in_time_is_each_classs_own():
    spans = [Span(SHORT, 1.9, 3.0, 0, 0, 0), Span(SHORT, 2.1, 3.0, 0, 0, 0), Span(LONG, 29.0, 40.0, 0, 0, 0)]
    found = reality_check.figures_of(spans)
    assert (found["goodput_ratio"], found["short_ratio"]) == (0.6667, 0.6667)
    assert (found["short_ttft_p50_s"], found["short_ttft_p99_s"], found["long_ttft_p99_s"]) == (1.9, 2.1, 29.0)


@pytest.mark.parametrize(
    ("real", "there", "ratio"),
    [(2.0, 1.5, -0.25), (2.0, 3.0, 0.5), (0.0, 1.0, None), (None, 1.0, None), (1.0, None, None)],
)
def test_a_difference_is_relative_to_the_real_figure_and_unknown_without_one(real, there, ratio):
    assert reality_check.figure(real, there) == Figure(real, there, ratio)


def test_only_what_is_checked_can_be_over_the_bound_and_what_is_unknown_is():
    figures = {name: Figure(1.0, 1.25, 0.25) for name in (*reality_check.CHECKED, "long_ttft_p99_s")}
    assert reality_check.over({**figures, "long_ttft_p99_s": Figure(1.0, 9.0, 8.0)}) == []
    assert reality_check.over({**figures, "goodput_ratio": Figure(1.0, 0.7, -0.3)}) == ["goodput_ratio"]
    assert reality_check.over({**figures, "short_ttft_p99_s": Figure(None, 1.0, None)}) == ["short_ttft_p99_s"]


def test_both_get_the_same_rows_at_the_same_rate_and_the_simulator_always_says_the_same(tmp_path):
    replay = asked(tmp_path).replay
    arrivals = [row.arrival_s for row in workload.paced(replay.rows, replay.rate_per_s)]
    jobs = reality_check.simulated(replay)
    assert [job.arrived_s for job in jobs] == pytest.approx(arrivals)
    assert {job.asked.work.request.tenant for job in jobs} == {row.service for row in replay.rows}
    again = reality_check.simulated(replay)
    assert [job.first_token_s for job in jobs] == [job.first_token_s for job in again]
    figures = reality_check.figures_of(list(map(reality_check.span, jobs)))
    assert 0 < figures["short_ttft_p50_s"] <= figures["short_ttft_p99_s"]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_report_names_what_differs(as_json, capsys):
    figures = {"goodput_ratio": Figure(1.0, 0.5, -0.5), "long_ttft_p50_s": Figure(None, 1.0, None)}
    found = RealityCheck(7, 0.95, 2, 1.0, 0, 0.01, figures, ["goodput_ratio"])
    reality_check.show(found, Output(CLOCK, as_json=as_json))
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said)["figures"]["goodput_ratio"] == {"real": 1.0, "simulated": 0.5, "difference_ratio": -0.5}
    else:
        assert "goodput_ratio differs by more than 25%" in said
        assert "-50.0%" in said
