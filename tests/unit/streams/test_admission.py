import pytest

from streams.policy import admission
from streams.policy.admission import Admit, Defer, Never, Paid, Reject, Short
from tests.support.builders import WALL_S, price, request
from topics.outcomes import Outcome, Reason

DELAYS_S = (1, 5, 30)


def test_what_is_paid_is_admitted():
    assert admission.decide(Paid(), 0.0, DELAYS_S) == Admit()


@pytest.mark.parametrize(
    ("wait_s", "delay_s"),
    [(0.001, 1), (1.0, 1), (1.5, 1), (4.99, 1), (5.0, 5), (29.0, 5), (30.0, 30), (300.0, 30)],
)
def test_what_will_be_affordable_in_time_comes_back_after_the_longest_delay_that_fits(wait_s, delay_s):
    assert admission.decide(Short("tenant", wait_s), 1000.0, DELAYS_S) == Defer(delay_s, Reason.BUDGET_TENANT)


@pytest.mark.parametrize(
    ("level", "reason"),
    [("global", Reason.BUDGET_GLOBAL), ("pool", Reason.BUDGET_POOL), ("tenant", Reason.BUDGET_TENANT)],
)
def test_what_cannot_wait_is_rejected_with_the_exact_time_to_come_again(level, reason):
    verdict = admission.decide(Short(level, 12.34567), 12.0, DELAYS_S)
    assert verdict == Reject(Outcome.REJECTED_BUDGET, reason, f"the {level} budget is spent", 12.346)


def test_a_wait_of_exactly_the_patience_is_deferred():
    assert admission.decide(Short("pool", 5.0), 5.0, DELAYS_S) == Defer(5, Reason.BUDGET_POOL)


def test_what_can_never_be_paid_is_too_large_and_need_not_come_again():
    verdict = admission.decide(Never("pool", 600.0), 1000.0, DELAYS_S)
    assert (verdict.outcome, verdict.reason, verdict.retry_after_s) == (
        Outcome.REJECTED_TOO_LARGE,
        Reason.BUDGET_POOL,
        None,
    )
    assert "600 units" in verdict.detail


@pytest.mark.parametrize(
    ("deadline_s", "waited_s", "patience_s"),
    [(None, 0, 30.0), (None, 10, 20.0), (None, 99, 0.0), (5.0, 0, 5.0), (5.0, 6, 0.0), (500.0, 0, 30.0)],
)
def test_patience_ends_at_the_deadline_or_at_the_longest_deferral(deadline_s, waited_s, patience_s):
    deadline = None if deadline_s is None else WALL_S + deadline_s
    assert admission.patience_s(request(deadline_s=deadline), 30.0, WALL_S + waited_s) == patience_s


@pytest.mark.parametrize(("deadline_s", "fits"), [(None, True), (1.5, True), (2.0, True), (1.0, False)])
def test_a_deadline_must_leave_the_engine_its_time(deadline_s, fits):
    deadline = None if deadline_s is None else WALL_S + deadline_s
    assert admission.fits_deadline(request(deadline_s=deadline), price(cost_units=1500.0), WALL_S) == fits
