import os

import pytest
from structlog.testing import capture_logs

from streams import following
from streams.control import Controls
from streams.estimates import Estimates
from streams.fleet import Fleet
from streams.order_log import OrderLog
from streams.settings import StreamsSettings
from tests.support.clock import FakeClock
from topics import clients, process

QUOTED = "QUOTED-from-a-record"


@pytest.fixture
def statuses(monkeypatch):
    seen = []
    monkeypatch.setattr(os, "_exit", seen.append)
    return seen


def run(follow):
    thread = following.thread("telemetry", follow)
    assert thread.daemon
    with capture_logs() as logs:
        thread.start()
        thread.join()
    return logs


def test_a_follower_that_fails_ends_the_process_and_says_where_but_not_on_what(statuses):
    def follow():
        raise ValueError(QUOTED)

    (event,) = run(follow)
    assert statuses == [process.EXIT_BUG]
    assert (event["event"], event["follower"], event["error"]) == ("follower_failed", "telemetry", "ValueError")
    assert "in follow" in event["where"]
    assert QUOTED not in event["where"].replace("ValueError(QUOTED)", "")


def test_a_follower_that_was_stopped_ends_nothing(statuses):
    assert run(lambda: None) == []
    assert statuses == []


class Message:
    """A record, as far as a follower looks at it."""

    def __init__(self, value):
        self._value = value

    def value(self):
        return self._value

    def error(self):
        return None

    def key(self):
        return b"key"

    def offset(self):
        return 0


def followers():
    settings, clock = StreamsSettings(), FakeClock()
    order_log = OrderLog(settings, clock, lambda: False)
    return [Fleet(settings, clock), Estimates(settings, clock), Controls(settings, clock, order_log, lambda *_: None)]


@pytest.mark.parametrize("follower", followers(), ids=lambda made: type(made).__name__)
def test_each_follower_ends_the_process_when_it_cannot_go_on(statuses, monkeypatch, follower):
    def broken(*_args, **_fields):
        raise RuntimeError(QUOTED)

    monkeypatch.setattr(clients, "reader", broken)
    monkeypatch.setattr(clients, "consumer", broken)
    follower.start()
    follower._thread.join()
    assert statuses == [process.EXIT_BUG]


@pytest.mark.parametrize("value", [b"\xff", b"{}", b'{"consumer":"\xff"}', b'{"x":' + b"[" * 100_000])
@pytest.mark.parametrize("follower", followers(), ids=lambda made: type(made).__name__)
def test_a_foreign_record_ends_no_follower(follower, value):
    assert follower._read(Message(value)) is None
