import pytest

from gpu_consumers.policy import crashes
from gpu_consumers.policy.crashes import Verdict


@pytest.mark.parametrize(
    ("takeovers", "max_takeovers", "another_runs", "expected"),
    [
        (1, 3, True, Verdict.RUN),
        (2, 3, False, Verdict.RUN),
        (2, 3, True, Verdict.WAIT),
        (3, 3, True, Verdict.WAIT),
        (3, 3, False, Verdict.RUN),
        (4, 3, False, Verdict.END),
        (4, 3, True, Verdict.END),
        (1, 1, True, Verdict.WAIT),
        (2, 1, True, Verdict.END),
    ],
)
def test_work_over_which_owners_were_lost(takeovers, max_takeovers, another_runs, expected):
    assert crashes.judge(takeovers, max_takeovers, another_runs=another_runs) is expected


@pytest.mark.parametrize("max_takeovers", [1, 2, 3, 10])
def test_nothing_is_given_up_that_never_ran_alone(max_takeovers):
    assert crashes.is_suspect(max_takeovers, max_takeovers)
    assert not crashes.is_suspect(0, max_takeovers)
