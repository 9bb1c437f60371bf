"""The embedded broker: durable, quick to come back, clear in refusal, and gone with its parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from topics import broker_jars
from topics.errors import DependencyDown
from topics.local_broker import LocalBroker

RESTART_LIMIT_S = 10.0
NOTICE_LIMIT_S = 12.0
GONE_LIMIT_S = 15.0

PARENT = """
import sys, time
from pathlib import Path
from topics.local_broker import LocalBroker
broker = LocalBroker(Path(sys.argv[1]))
broker.start()
print(broker.pid, flush=True)
time.sleep(600)
"""

MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "group.protocol": "consumer"})
consumer.subscribe(["t"])
while not consumer.assignment():
    consumer.poll(0.1)
print("member", flush=True)
while True:
    consumer.poll(0.1)
"""


def is_gone(pid):
    """A zombie that nobody reaps counts as gone."""
    try:
        with Path(f"/proc/{pid}/stat").open(encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, limit_s):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {limit_s} s"
        time.sleep(0.05)


def create_topic(broker, name):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(10)


def produce(broker, topic, value):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    producer.produce(topic, value)
    assert producer.flush(10) == 0


def consume_one(broker, topic):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"reads-{time.monotonic_ns()}",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_a_restart_keeps_records_and_address_and_needs_neither_network_nor_long(tmp_path, monkeypatch):
    with LocalBroker(tmp_path) as broker:
        first_address = broker.bootstrap_servers
        create_topic(broker, "t")
        produce(broker, "t", b"kept")
        assert consume_one(broker, "t") == b"kept"
    monkeypatch.setattr(broker_jars, "_download", lambda *_: pytest.fail("touched the network"))
    start_s = time.monotonic()
    with LocalBroker(tmp_path) as broker:
        assert time.monotonic() - start_s <= RESTART_LIMIT_S
        assert broker.bootstrap_servers == first_address
        assert consume_one(broker, "t") == b"kept"


def test_a_killed_broker_comes_back_in_time_with_its_records(tmp_path):
    broker = LocalBroker(tmp_path)
    broker.start()
    create_topic(broker, "t")
    produce(broker, "t", b"kept")
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not broker.is_running(), 30)
    broker.stop()
    start_s = time.monotonic()
    with broker:
        assert time.monotonic() - start_s <= RESTART_LIMIT_S
        assert consume_one(broker, "t") == b"kept"


@pytest.mark.slow
def test_a_restart_moves_to_other_ports_when_its_own_are_taken(tmp_path):
    with LocalBroker(tmp_path) as broker:
        create_topic(broker, "t")
        produce(broker, "t", b"kept")
        taken_port = int(broker.bootstrap_servers.rpartition(":")[2])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", taken_port))
        other.listen()
        with LocalBroker(tmp_path) as broker:
            assert broker.bootstrap_servers != f"127.0.0.1:{taken_port}"
            assert consume_one(broker, "t") == b"kept"


def test_stop_leaves_no_process_and_frees_the_port(tmp_path):
    broker = LocalBroker(tmp_path)
    broker.start()
    pid, address = broker.pid, broker.bootstrap_servers
    broker.stop()
    assert is_gone(pid)
    assert broker.pid is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0


def test_a_taken_port_is_named_with_its_setting(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(DependencyDown, match=rf"port {port}: it is taken .*set KAFKA_PORT"):
            LocalBroker(tmp_path, port=port, port_setting="KAFKA_PORT").start()


def test_a_second_broker_on_the_same_data_is_refused_with_the_holder(tmp_path):
    with (
        LocalBroker(tmp_path) as broker,
        pytest.raises(DependencyDown, match=rf"already runs .*process {os.getpid()}, its server {broker.pid}"),
    ):
        LocalBroker(tmp_path).start()


def test_a_broker_that_cannot_start_says_why_and_where_its_log_is(tmp_path):
    broker = LocalBroker(tmp_path, properties={"log.segment.bytes": "large"})
    with pytest.raises(DependencyDown, match=r"Invalid value large for .*log\.segment\.bytes") as failure:
        broker.start()
    assert str(broker.log_path) in failure.value.where
    assert not broker.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_a_killed_parent_takes_the_broker_with_it(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_until(lambda: is_gone(pid), GONE_LIMIT_S)
    parent.stdout.close()


def test_a_killed_consumer_loses_its_partitions_in_seconds(tmp_path):
    with LocalBroker(tmp_path) as broker:
        create_topic(broker, "t")
        doomed = subprocess.Popen([sys.executable, "-c", MEMBER, broker.bootstrap_servers], stdout=subprocess.PIPE)
        assert doomed.stdout.readline() == b"member\n"
        survivor = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "group.protocol": "consumer"}
        )
        survivor.subscribe(["t"])
        wait_until(lambda: survivor.poll(0.1) is None and len(survivor.assignment()) == 1, 30)
        doomed.kill()
        doomed.wait()
        wait_until(lambda: survivor.poll(0.1) is None and len(survivor.assignment()) == 2, NOTICE_LIMIT_S)
        survivor.close()
        doomed.stdout.close()


def test_every_kafka_jar_has_the_version_of_the_broker():
    versions = {
        jar.coordinate.split(":")[2] for jar in broker_jars.pinned() if jar.coordinate.startswith("org.apache.kafka:")
    }
    assert versions == {broker_jars.KAFKA_VERSION}


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path, monkeypatch):
    def forge(_jar, scratch):
        (scratch / "forged").write_bytes(b"other")
        return scratch / "forged"

    monkeypatch.setattr(broker_jars, "_download", forge)
    monkeypatch.setattr(broker_jars, "pinned", lambda: (broker_jars.Jar("g:a:1", 5, "0" * 64),))
    with pytest.raises(DependencyDown, match="g:a:1 could not be downloaded: its SHA-256 is not the pinned one"):
        broker_jars.class_path(tmp_path, lambda _line: None)
    assert not (tmp_path / "a-1.jar").exists()
