"""The breaker: when Redis is not asked."""

import structlog
from prometheus_client import REGISTRY

from streams import metrics
from streams.breaker import Breaker
from streams.settings import Degrade
from tests.support.clock import FakeClock


def made():
    return Breaker(FakeClock(), Degrade(timeout_s=0.25))


def gauges():
    names = ("rampmeter_streams_redis_degraded", "rampmeter_streams_redis_available")
    return tuple(REGISTRY.get_sample_value(name) for name in names)


def test_it_starts_closed_and_a_success_leaves_it_so():
    breaker = made()
    assert not breaker.is_open
    breaker.note(ok=True)
    assert not breaker.is_open


def test_the_first_failure_opens_it_and_the_first_success_closes_it():
    breaker = made()
    breaker.note(ok=False)
    assert breaker.is_open
    breaker.note(ok=False)
    assert breaker.is_open
    breaker.note(ok=True)
    assert not breaker.is_open


def test_the_gauges_and_readiness_follow_it():
    breaker = made()
    breaker.note(ok=False)
    assert gauges() == (1, 0)
    assert metrics.missing() == "redis"
    breaker.note(ok=True)
    assert gauges() == (0, 1)
    assert metrics.missing() is None


def test_each_change_is_one_line_that_says_how_long_it_was_open():
    clock = FakeClock()
    breaker = Breaker(clock, Degrade())
    with structlog.testing.capture_logs() as lines:
        for ok in (True, False, False, False):
            breaker.note(ok=ok)
        clock.advance(2.5)
        for ok in (True, True):
            breaker.note(ok=ok)
    assert [line["event"] for line in lines] == ["redis_degraded", "redis_restored"]
    assert lines[-1]["open_s"] == 2.5


def test_listeners_hear_of_each_closing_and_of_nothing_else():
    breaker, heard = made(), []
    breaker.on_close(lambda: heard.append(breaker.is_open))
    for ok in (True, False, False, True, True, False, True):
        breaker.note(ok=ok)
    assert heard == [False, False]
