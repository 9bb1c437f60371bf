"""A source and its thread: what was read last, since when, and what is wrong now."""

import threading
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from rampmeter.console.watch import Watch, said
from tests.support.clock import FakeClock
from topics.errors import DependencyDown, LagUnavailable

WAIT_S = 10


class Scripted:
    """Gives one answer after another, each when told to."""

    def __init__(self, *answers):
        self._answers = iter(answers)
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self.opened = 0

    @contextmanager
    def open(self):
        self.opened += 1
        yield self._read

    def _read(self):
        self._done.release()  # what came before is noted
        self._go.acquire(timeout=WAIT_S)
        answer = next(self._answers, 0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def step(self):
        self._go.release()
        assert self._done.acquire(timeout=WAIT_S)


def watched(source, clock):
    made = Watch("lanes", source.open, clock, 0.001)
    made.start()
    assert source._done.acquire(timeout=WAIT_S)
    return made


def end(made, source):
    made.ask_to_stop()
    source._go.release()
    made.join()


def test_a_failed_reading_leaves_the_last_good_one_with_its_time():
    clock = FakeClock()
    source = Scripted(7, LagUnavailable("away"), 8)
    made = watched(source, clock)
    assert (made.seen.value, made.seen.good_s, made.seen.problem) == (None, None, "not read yet")
    source.step()
    first_s = clock.wall_s()
    assert (made.seen.value, made.seen.good_s, made.seen.problem) == (7, first_s, None)
    clock.advance(30)
    source.step()
    assert (made.seen.value, made.seen.good_s, made.seen.problem) == (7, first_s, "away")
    source.step()
    assert (made.seen.value, made.seen.good_s, made.seen.problem) == (8, first_s + 30, None)
    assert source.opened == 1
    end(made, source)
    assert not made.is_alive


def test_a_source_that_cannot_be_opened_is_tried_again():
    clock, opened = FakeClock(), threading.Event()
    tries = []

    @contextmanager
    def opening():
        tries.append(1)
        if len(tries) < 3:
            raise DependencyDown("Redis does not answer", "here", "Start it.")
        opened.set()
        yield lambda: 1

    made = Watch("budgets", opening, clock, 0.001)
    made.start()
    assert opened.wait(WAIT_S)
    made.ask_to_stop()
    made.join()
    assert len(tries) == 3


def test_a_problem_is_one_line():
    assert said(LagUnavailable("one\ntwo")) == "one"
    assert said(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))) == "no answer"
