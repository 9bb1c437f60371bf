import pytest

from rampmeter import results
from rampmeter.results import Answer, Observed
from topics.outcomes import Outcome
from topics.records import Length


def answer(received_s=11.0, length=Length.SHORT, outcome=Outcome.COMPLETED, **fields):
    return Answer(outcome, length, received_s, **fields)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0), (list(range(1, 201)), 0.99, 198)],
)
def test_quantile_is_the_nearest_rank(values, share, expected):
    assert results.quantile(values, share) == expected


def test_request_without_reply_is_lost():
    found = results.summary(Observed({"a": 10.0, "b": 10.0}, {"a": answer()}, duplicates=0))
    assert (found.sent, found.replied, found.lost) == (2, 1, 1)
    assert not found.is_clean()


def test_second_reply_makes_a_run_unclean():
    assert not results.summary(Observed({"a": 10.0}, {"a": answer()}, duplicates=1)).is_clean()
    assert results.summary(Observed({"a": 10.0}, {"a": answer()}, duplicates=0)).is_clean()


def test_times_count_from_the_intended_moment_in_simulated_seconds():
    run = Observed({"a": 10.0}, {"a": answer(received_s=12.0, first_token_s=10.5)}, duplicates=0)
    found = results.summary(run, speed=10)
    assert found.ttft_s["short"] == {"p50": 5.0, "p99": 5.0}
    assert found.e2e_s["short"] == {"p50": 20.0, "p99": 20.0}


def test_class_is_the_one_that_admission_assigned():
    run = Observed({"a": 10.0}, {"a": answer(length=Length.LONG, first_token_s=11.0)}, duplicates=0)
    found = results.summary(run)
    assert found.ttft_s == {"short": {"p50": None, "p99": None}, "long": {"p50": 1.0, "p99": 1.0}}


def test_rejections_are_outcomes_and_not_latencies():
    rejected = answer(outcome=Outcome.REJECTED_BUDGET, retry_after_s=2.0)
    found = results.summary(Observed({"a": 10.0}, {"a": rejected}, duplicates=0))
    assert found.outcomes == {"rejected_budget": 1}
    assert found.e2e_s["short"] == {"p50": None, "p99": None}


def test_replicas_that_were_never_seen_are_unknown_and_not_zero():
    assert results.summary(Observed({}, {}, duplicates=0)).replicas == {"min": None, "max": None}
    assert results.summary(Observed({}, {}, duplicates=0, replicas=(1, 3))).replicas == {"min": 1, "max": 3}
