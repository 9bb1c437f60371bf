"""The audit on real topics."""

import pytest
from confluent_kafka.admin import NewTopic

from rampmeter import audit
from streams.settings import StreamsSettings
from tests.support.builders import body
from tests.support.streams_worker import send
from topics import clients, codec
from topics.clock import SystemClock
from topics.outcomes import Outcome
from topics.records import Reply
from topics.settings import load


@pytest.fixture
def loaded(settings, monkeypatch):
    monkeypatch.setenv("RAMPMETER_IDENTITY__REPLY_TOPICS", '{"acme": ["acme-answers"]}')
    made = load(StreamsSettings)
    name = made.topic("acme-answers")
    admin = clients.admin(made)
    admin.create_topics([NewTopic(name, num_partitions=1)])[name].result()
    return made


def test_answers_on_a_tenants_own_reply_topic_count(loaded):
    (origin,) = send(loaded, "requests.high.short", [(body(), b"acme", [], 0)])
    reply = Reply(id="r1", outcome=Outcome.CANCELLED, origin=origin)
    send(loaded, "acme-answers", [(codec.encode(reply), b"r1", [], 0)])
    now_s = SystemClock().wall_s()
    found = audit.report(audit.read(loaded, now_s - 600), now_s, 0.0)
    assert found.is_clean()
    assert (found.answered, found.outcomes) == (1, {"cancelled": 1})
