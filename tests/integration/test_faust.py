"""Faust as streams builds it, against a real broker: commits, recovery, and agents that end."""

import os
import re
import subprocess
import sys

import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.support.streams_worker import send, wait_until
from topics import catalog, clients
from topics.records import Length, Priority

LANDING = "requests.high.short"
RECORDS = 20
SPEND = "rampmeter-streams-spend-changelog"


@pytest.fixture
def start(settings, tmp_path):
    """Start the application with an agent that acts so; its process and what it has said."""
    running = []

    def begin(acts):
        log = (tmp_path / f"{len(running)}.log").open("w+b")
        env = {**os.environ, "RAMPMETER_STREAMS__SESSION_TIMEOUT_S": "6", "RAMPMETER_STREAMS__RECOVERY_LIMIT_S": "4"}
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.faust_app", acts], env=env, stdout=log, stderr=log
        )
        running.append((child, log))

        def said():
            assert child.poll() in {None, 69, -9}
            return (tmp_path / f"{running.index((child, log))}.log").read_text()

        return child, said

    yield begin
    for child, log in running:
        child.kill()
        child.wait(10)
        log.close()


def fill(settings):
    for partition in (0, 1):
        send(settings, LANDING, [(b"{}", b"k", [], partition)] * RECORDS)


def committed(settings):
    """Committed offsets of the landing topic's partitions; none while the group's coordinator is still sought."""
    topic = catalog.landing(settings, Priority.HIGH, Length.SHORT)
    reader = clients.consumer(settings, catalog.group(settings, "streams"))
    try:
        return [max(0, tp.offset) for tp in reader.committed([TopicPartition(topic, p) for p in (0, 1)], timeout=10)]
    except KafkaException:
        return [0, 0]
    finally:
        reader.close()


def test_on_a_fresh_group_no_commit_passes_an_unfinished_record_and_a_kill_loses_none(settings, start):
    fill(settings)
    first, said = start("acknowledge_all_but_the_first")
    wait_until(lambda: committed(settings)[1] == RECORDS, 60, said)
    assert committed(settings)[0] == 0
    first.kill()
    _, said = start("list_all")
    found = wait_until(lambda: len(read := re.findall(r"read (\d+) (\d+)", said())) >= RECORDS and read, 60, said)
    assert found == [("0", str(offset)) for offset in range(RECORDS)]
    wait_until(lambda: committed(settings) == [RECORDS, RECORDS], 30, said)


def test_an_agent_that_ends_is_complained_of(settings, start):
    fill(settings)
    _, said = start("end")
    wait_until(lambda: "complaint the agent under_test ended" in said(), 60, said)


def test_a_recovery_that_does_not_end_ends_the_process_and_says_so(settings, start):
    sender = clients.producer(settings, transactional_id=settings.topics.prefix, delivery_timeout_ms=30_000)
    sender.init_transactions(30)
    sender.begin_transaction()
    sender.produce(settings.topic(SPEND), b"{}", b"k", partition=0)
    sender.commit_transaction(30)  # its end lies on the log like a record that no one ever gets
    child, said = start("list_all")
    assert child.wait(90) == 69, said()
    assert "recovery_did_not_end" in said()
    assert "RAMPMETER_STREAMS__RECOVERY_LIMIT_S" in said()
