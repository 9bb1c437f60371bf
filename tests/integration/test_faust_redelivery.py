"""Copies of one deferral: a worker that dies between the send and the acknowledgement leaves two."""

import time

import pytest

from tests.support import builders
from tests.support.streams_worker import Site, StreamsWorker, send
from topics import codec
from topics.outcomes import Outcome
from topics.records import Origin, ReplyAddress

LANDING = "requests.medium.short"


@pytest.fixture
def site(broker, redis_server):
    small = {"refill_units_per_s": 1.0, "burst_s": 200.0}
    made = Site(broker, redis_server.url, 5, tenant_budgets={"acme": small}, max_deferral_s=1.0)
    yield made
    made.close()


def copies(site, identity, count, offset):
    """Work that has waited for longer than it may, as often as a death after another leaves it."""
    origin = Origin(topic=site.settings.topic(LANDING), partition=0, offset=offset)
    fields = {
        "id": identity, "origin": origin, "reply": ReplyAddress(topic=site.settings.topic("replies")),
        "arrived_s": time.time() - 60,
    }  # fmt: skip
    return [(codec.encode(builders.work(fields, deferrals=1)), b"acme", [], 0)] * count


@pytest.mark.parametrize(
    "topics", [("deferred.1s",), pytest.param(("deferred.1s", "deferred.5s"), marks=pytest.mark.slow)], ids=" and ".join
)
def test_a_deferral_that_was_written_twice_is_answered_once(site, tmp_path, topics):
    ids = [f"r{number}" for number in range(20)]
    for number, identity in enumerate(ids):
        for topic in topics:
            send(site.settings, topic, copies(site, identity, 3 - len(topics), number))
    worker = StreamsWorker(site.env, tmp_path / "worker.log").start()
    send(site.settings, topics[-1], copies(site, "last", 1, len(ids)))
    replies = site.log("replies")
    replies.until(lambda messages: {*ids, "last"} <= {m.key().decode() for m in messages}, 60)
    assert worker.stop() == 0
    answers = [codec.decode_answer(m.value()) for m in replies.poll()]
    assert {answer.outcome for answer in answers} == {Outcome.REJECTED_BUDGET}
    assert sorted(answer.id for answer in answers) == sorted([*ids, "last"])
