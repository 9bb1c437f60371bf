"""How the Faust application is set up: what would lose or hoard records is off."""

import pytest
from faust.types.enums import ProcessingGuarantee

from streams import app, transport
from streams.settings import Streams, StreamsSettings


@pytest.fixture
def conf(tmp_path):
    made = app.build(StreamsSettings(kafka={"bootstrap.servers": "127.0.0.1:1"}), tmp_path)
    assert isinstance(made.transport, transport.Transport)
    return made.conf


def test_transactions_are_off_since_fausts_lose_records(conf):
    assert conf.processing_guarantee is ProcessingGuarantee.AT_LEAST_ONCE


def test_buffers_and_fetches_are_bounded_and_commits_frequent(conf):
    assert conf.stream_buffer_maxsize == 1000
    assert conf.consumer_max_fetch_size <= 4 * 1024**2
    assert conf.broker_commit_every <= 1000
    assert conf.broker_commit_interval <= 1.0


def test_no_topic_is_created_and_no_rebalance_waits_for_work(conf):
    assert not conf.topic_allow_declare
    assert conf.topic_disable_leader
    assert not conf.stream_wait_empty
    assert conf.producer_acks == -1


def test_a_fresh_group_reads_from_the_start(conf):
    assert (conf.id, conf.consumer_auto_offset_reset) == ("rampmeter-streams", "earliest")


def test_a_shadow_is_a_group_of_its_own(tmp_path):
    settings = StreamsSettings(kafka={"bootstrap.servers": "127.0.0.1:1"}, streams=Streams(shadow="small"))
    assert app.build(settings, tmp_path).conf.id == "rampmeter-shadow-small"


def test_to_ask_what_a_shadow_owns_makes_no_consumer_before_its_loop_does(tmp_path):
    settings = StreamsSettings(kafka={"bootstrap.servers": "127.0.0.1:1"}, streams=Streams(shadow="small"))
    made = app.build(settings, tmp_path)
    assert app.owned(made) == set()
    assert made._consumer is None
