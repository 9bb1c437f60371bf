import asyncio

import pytest
from confluent_kafka import KafkaError
from prometheus_client import CollectorRegistry

from gpu_consumers import posting
from gpu_consumers.answering import EXPIRED, Used, Writer
from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.claims import ClaimsUnavailable
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.outbox import Ack
from gpu_consumers.parcels import OneByOne
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from gpu_consumers.posting import Post, Poster, Settlement
from gpu_consumers.settings import GpuSettings
from tests.support.builders import WALL_S, work
from tests.support.clock import FakeClock
from topics import answers
from topics.outcomes import Outcome
from topics.records import Length, Tier, Tokens


class FakeOutbox:
    """Takes letters and lets the test say what became of them."""

    def __init__(self):
        self.sent, self.waiting = [], []

    def send(self, letter, on_ack):
        self.sent.append(letter.topic)
        self.waiting.append((letter, on_ack))

    def end(self, error=None):
        waiting, self.waiting = self.waiting, []
        for letter, on_ack in waiting:
            on_ack(Ack(error, letter.topic, 0, 7))


class FakeClaims:
    def __init__(self):
        self.is_ours, self.away, self.asked = True, 0, []
        self.goes_without = False

    def holds(self, _id):
        return self.is_ours

    def is_sure(self, _id):
        return self.is_ours

    async def hold(self, ids):
        self.asked.append(ids)
        if self.away:
            self.away -= 1
            raise ClaimsUnavailable("ConnectionError")


class Stage:
    def __init__(self, monkeypatch):
        monkeypatch.setattr(posting, "RESEND_S", 0.0)
        monkeypatch.setattr(answers, "find", lambda *_: self.in_the_log)
        self.in_the_log, self.outbox, self.claims, self.fenced = {}, FakeOutbox(), FakeClaims(), []
        settings, clock = GpuSettings(), FakeClock()
        self.writer = Writer(settings, "gpu-1")
        metrics = Metrics(CollectorRegistry())
        post = Post(self.outbox, OneByOne(self.outbox), self.claims)
        self.poster = Poster(settings, self.writer, post, clock, metrics)
        self.poster.on_fenced = self.fenced.append
        where = Assignment("lane", 0, Lane(Tier.HIGH, Length.SHORT), OffsetTracker(None, [], window_records=9))
        made = work()
        self.entry = Entry(Fetched(where, 0, b"", b"", WALL_S), made, Ask(100, 100, 100.0))

    def answer(self):
        reply = self.writer.reply(self.entry, EXPIRED, WALL_S)
        self.poster.post_answer(Settlement(self.entry, reply), reply)

    async def turn(self):
        """Let the poster send again what it will."""
        task = asyncio.create_task(self.poster.run())
        for _ in range(20):
            await asyncio.sleep(0.005)
        task.cancel()


@pytest.mark.asyncio
async def test_an_answer_of_unknown_fate_is_sent_again_by_who_still_holds_its_claim(monkeypatch):
    stage = Stage(monkeypatch)
    stage.answer()
    stage.outbox.end(KafkaError._MSG_TIMED_OUT)
    stage.claims.away = 2
    await stage.turn()
    assert stage.claims.asked == [["r1"]] * 3
    assert stage.outbox.sent == ["usage", "replies"] * 2
    stage.outbox.end()
    assert (len(stage.poster.posted), stage.fenced) == (1, [])


@pytest.mark.asyncio
async def test_an_answer_of_unknown_fate_is_dropped_with_its_usage_when_another_holds_its_claim(monkeypatch):
    stage = Stage(monkeypatch)
    stage.answer()
    stage.outbox.end(KafkaError._MSG_TIMED_OUT)
    stage.claims.is_ours = False
    await stage.turn()
    assert stage.outbox.sent == ["usage", "replies"]
    assert ([settlement.entry for settlement in stage.fenced], len(stage.poster.posted)) == ([stage.entry], 0)


@pytest.mark.asyncio
async def test_an_answer_of_unknown_fate_that_lies_in_the_log_is_not_sent_again(monkeypatch):
    stage = Stage(monkeypatch)
    stage.answer()
    stage.outbox.end(KafkaError._MSG_TIMED_OUT)
    stage.in_the_log = {"r1": "its reply"}
    await stage.turn()
    assert stage.outbox.sent == ["usage", "replies", "usage"]
    stage.outbox.end()
    assert len(stage.poster.posted) == 1


@pytest.mark.asyncio
async def test_a_retry_of_unknown_fate_is_sent_again_whoever_holds_the_claim(monkeypatch):
    stage = Stage(monkeypatch)
    letter = stage.writer.retry_letter(stage.entry.work)
    stage.poster._post(Settlement(stage.entry), None, letter)
    stage.outbox.end(KafkaError._MSG_TIMED_OUT)
    stage.claims.is_ours = False
    await stage.turn()
    assert stage.outbox.sent == [letter.topic] * 2


@pytest.mark.asyncio
async def test_an_answer_without_a_claim_is_sent_again_while_redis_is_away_once_it_is_not_in_the_log(monkeypatch):
    stage = Stage(monkeypatch)
    stage.claims.goes_without, stage.claims.away = True, 99
    stage.answer()
    stage.outbox.end(KafkaError._MSG_TIMED_OUT)
    await stage.turn()
    assert stage.outbox.sent == ["usage", "replies"] * 2
    stage.outbox.end()
    assert (len(stage.poster.posted), stage.fenced) == (1, [])


def spans(told):
    return [span.name.split()[0] for span in told()]


def test_an_answer_is_told_as_sent_when_the_broker_has_it(monkeypatch, told):
    stage = Stage(monkeypatch)
    stage.entry.started_s, stage.entry.first_token_s = WALL_S - 5, WALL_S - 4
    stage.answer()
    assert spans(told) == ["chat", "process"]
    stage.outbox.end()
    run, process, sent = told()
    assert sent.name == "send replies"
    assert run.parent.span_id == sent.parent.span_id == process.context.span_id
    assert run.attributes["gen_ai.response.time_to_first_chunk"] == 1.0
    assert (run.end_time - run.start_time) / 1e9 == 5.0


def test_an_answer_that_another_gives_is_not_told_as_sent(monkeypatch, told):
    stage = Stage(monkeypatch)
    stage.answer()
    stage.outbox.end(KafkaError._MSG_TIMED_OUT)
    assert spans(told) == ["process"]


def test_an_attempt_that_another_follows_is_told_in_error(monkeypatch, told):
    stage = Stage(monkeypatch)
    stage.entry.started_s = WALL_S - 5
    used = Used(Outcome.FAILED, Tokens(prompt=5, output=2), 1, WALL_S, WALL_S - 5, partial=True)
    stage.poster.post_retry(Settlement(stage.entry), used)
    run, process = told()
    assert {run.attributes["error.type"], process.attributes["error.type"]} == {"attempt_failed"}
    assert run.attributes["gen_ai.usage.output_tokens"] == 2
