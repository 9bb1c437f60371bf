import msgspec

from gpu_consumers.policy.expiry import StartLimits, is_expired, last_start_s
from tests.support.builders import WALL_S, work
from topics.records import Length


def test_work_expires_at_its_deadline_and_not_before():
    due = work({"deadline_s": WALL_S})

    assert not is_expired(due, WALL_S - 0.001)
    assert is_expired(due, WALL_S)


def test_work_without_a_deadline_never_expires():
    assert not is_expired(work(), WALL_S + 1e9)


def test_work_of_a_length_may_not_begin_later_than_that_length_may_wait():
    limits = StartLimits(short_s=2.0, long_s=30.0)
    short = work({"arrived_s": WALL_S})
    long = msgspec.structs.replace(short, price=msgspec.structs.replace(short.price, length=Length.LONG))

    assert short.price.length is Length.SHORT
    assert [last_start_s(one, limits) for one in (short, long)] == [WALL_S + 2.0, WALL_S + 30.0]
    assert is_expired(short, WALL_S + 2.0, limits)
    assert not is_expired(long, WALL_S + 2.0, limits)


def test_the_sooner_of_deadline_and_longest_wait_counts():
    limits = StartLimits(short_s=2.0)
    assert last_start_s(work({"arrived_s": WALL_S, "deadline_s": WALL_S + 1}), limits) == WALL_S + 1
    assert last_start_s(work({"arrived_s": WALL_S, "deadline_s": WALL_S + 9}), limits) == WALL_S + 2


def test_an_attempt_that_failed_began_in_time():
    again = msgspec.structs.replace(work({"arrived_s": WALL_S}), attempt=2)
    assert last_start_s(again, StartLimits(short_s=2.0)) is None
