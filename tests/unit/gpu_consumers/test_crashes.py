import pytest

from gpu_consumers.policy import crashes


@pytest.mark.parametrize(
    ("takeovers", "max_takeovers", "is_suspect", "is_over"),
    [
        (0, 1, False, False),
        (1, 3, False, False),
        (2, 3, True, False),
        (3, 3, True, False),
        (4, 3, True, True),
        (1, 1, True, False),
        (2, 1, True, True),
    ],
)
def test_work_over_which_owners_were_lost(takeovers, max_takeovers, is_suspect, is_over):
    assert crashes.is_suspect(takeovers, max_takeovers) == is_suspect
    assert crashes.is_over(takeovers, max_takeovers) == is_over


@pytest.mark.parametrize("max_takeovers", [1, 2, 3, 10])
def test_nothing_is_given_up_that_never_ran_apart(max_takeovers):
    assert crashes.is_suspect(max_takeovers, max_takeovers)
    assert not crashes.is_over(max_takeovers, max_takeovers)
