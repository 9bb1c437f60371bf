"""What a failing test leaves behind."""

import sys

from tests.support import started


def test_what_was_left_running_is_ended_and_what_ended_is_left_alone():
    running = started.popen([sys.executable, "-c", "input()"], stdin=-1)
    ended = started.popen([sys.executable, "-c", "raise SystemExit(3)"])
    ended.wait()
    started.end_all()
    assert (running.poll(), ended.poll()) == (-9, 3)
