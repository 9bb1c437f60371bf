from gpu_consumers.policy.expiry import expired, is_expired
from tests.support.builders import WALL_S, work


def test_work_expires_at_its_deadline_and_not_before():
    due = work({"deadline_s": WALL_S})

    assert not is_expired(due, WALL_S - 0.001)
    assert is_expired(due, WALL_S)


def test_work_without_a_deadline_never_expires():
    assert not is_expired(work(), WALL_S + 1e9)


def test_the_expired_come_out_in_their_order():
    queued = [work({"id": id_, "deadline_s": deadline_s}) for id_, deadline_s in (("a", 5.0), ("b", 9.0), ("c", 1.0))]

    assert [late.request.id for late in expired(queued, now_s=5.0)] == ["a", "c"]
