import threading

import pytest

from gpu_consumers.maintenance import Maintenance, rest_s
from tests.support.clock import FakeClock


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 5.0), (0.5, 5.0), (1.0, 9.0), (60.0, 540.0)])
def test_a_slow_round_is_followed_by_a_longer_pause(took_s, pause_s):
    assert rest_s(took_s, interval_s=5.0, ratio=0.1) == pytest.approx(pause_s)


def test_the_whole_time_may_be_given_to_it():
    assert rest_s(60.0, interval_s=5.0, ratio=1.0) == 5.0


def test_its_jobs_run_in_order_in_a_thread_of_their_own_until_it_is_stopped():
    seen, over = [], threading.Event()

    def second():
        seen.append(threading.current_thread().name)
        made.stop()
        over.set()

    made = Maintenance([lambda: seen.append("first"), second], 0.001, 1.0, FakeClock())
    made.start()
    assert over.wait(10)
    assert seen == ["first", "maintenance"]


def test_a_job_that_breaks_is_told():
    made = Maintenance([lambda: 1 / 0], 0.001, 1.0, FakeClock())
    thread = threading.Thread(target=made._run)
    thread.start()
    thread.join(10)
    assert isinstance(made.failure, ZeroDivisionError)
