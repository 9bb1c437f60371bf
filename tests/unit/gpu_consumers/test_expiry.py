from gpu_consumers.policy.expiry import is_expired
from tests.support.builders import WALL_S, work


def test_work_expires_at_its_deadline_and_not_before():
    due = work({"deadline_s": WALL_S})

    assert not is_expired(due, WALL_S - 0.001)
    assert is_expired(due, WALL_S)


def test_work_without_a_deadline_never_expires():
    assert not is_expired(work(), WALL_S + 1e9)
