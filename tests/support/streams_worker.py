"""A real streams worker as a child process, and readers and writers of its topics."""

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from contextlib import contextmanager

from confluent_kafka import TopicPartition

from streams.settings import StreamsSettings
from tests.support import started
from topics import admin, clients, codec, tail
from topics.records import Origin, Reply

READY_S = 60.0
POLL_S = 0.1


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class StreamsWorker:
    """`python -m streams` with these variables; its log is appended to a file."""

    def __init__(self, env, log_path):
        self.port = free_port()
        self.log_path = log_path
        self._env = {**{k: v for k, v in os.environ.items() if not k.startswith("RAMPMETER_")}, **env}
        self._env["RAMPMETER_STATUS_PORT"] = str(self.port)
        self.process = None

    def start(self, *, wait=True):
        with self.log_path.open("ab") as log:
            self.process = started.popen([sys.executable, "-m", "streams"], env=self._env, stdout=log, stderr=log)
        if wait:
            wait_until(self.is_ready, READY_S, lambda: self.log()[-4000:])
        return self

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def is_ready(self):
        assert self.process.poll() is None, self.log()[-4000:]
        return self.get("/readyz")[0] == 200

    def metric(self, line):
        """The value of a metric's line without its number; 0 when it is not there."""
        found = [text for text in self.get("/metrics")[1].splitlines() if text.rsplit(" ", 1)[0] == line]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0

    def log(self):
        return self.log_path.read_text() if self.log_path.exists() else ""

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def stop(self):
        """Ask it to end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()


def wait_until(condition, timeout_s, explain=lambda: ""):
    """Poll until `condition()` is truthy and return that."""
    end_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"not within {timeout_s} s: {explain()}"
        time.sleep(POLL_S)
    return found


@contextmanager
def steadily_written(settings, name, every_s, limit_s=30.0):
    """A thread that writes to a topic's first partition, from before this yields until after it, or to the limit."""
    producer, over = clients.producer(settings), threading.Event()
    end_s = time.monotonic() + limit_s

    def write():
        while not over.wait(every_s) and time.monotonic() < end_s:
            producer.produce(settings.topic(name), b"{}", b"steady", partition=0)
            producer.poll(0)

    producer.produce(settings.topic(name), b"{}", b"steady", partition=0)
    producer.flush(10)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield writer
    finally:
        over.set()
        writer.join()
        producer.flush(10)


class TopicLog:
    """All records of some topics from their beginning, read on demand."""

    def __init__(self, settings, *names):
        self._reader = clients.reader(settings)
        counts = admin.partition_counts(settings)
        topics = [settings.topic(name) for name in names]
        spots = [TopicPartition(t, p, 0) for t in topics for p in range(counts[t])]
        self._next = dict.fromkeys(((spot.topic, spot.partition) for spot in spots), 0)
        self._reader.assign(spots)
        self.messages = []

    def poll(self):
        """All that is there now."""
        ends = {place: tail.watermarks(self._reader, TopicPartition(*place), 20)[1] for place in self._next}
        give_up_s = time.monotonic() + 20
        while any(self._next[place] < end for place, end in ends.items()) and time.monotonic() < give_up_s:
            for message in self._reader.consume(1000, timeout=0.1):
                place = message.topic(), message.partition()
                if message.error() is None:
                    self.messages.append(message)
                    self._next[place] = message.offset() + 1
                elif tail.is_end(message):
                    self._next[place] = max(self._next[place], message.offset())
        return self.messages

    def until(self, condition, timeout_s=30.0):
        """Read until `condition(messages)` is truthy and return that."""
        return wait_until(lambda: condition(self.poll()), timeout_s, lambda: f"{len(self.messages)} records")

    def close(self):
        self._reader.close()


def send(settings, topic, records, **producer):
    """Send (value, key, headers, partition) tuples in order; their origins."""
    sender = clients.producer(settings, **producer)
    origins = []

    def note(error, message):
        assert error is None, error
        origins.append(Origin(topic=message.topic(), partition=message.partition(), offset=message.offset()))

    for value, key, headers, partition in records:
        sender.produce(settings.topic(topic), value, key, headers=headers, partition=partition, on_delivery=note)
        sender.poll(0)
    assert sender.flush(30) == 0
    return origins


def answers_by_place(replies):
    """How often each landing record was answered, by a log of reply topics."""
    answers = [codec.decode_answer(message.value()) for message in replies.poll()]
    return Counter(answer.origin.place for answer in answers if isinstance(answer, Reply))


def chat(text="hello", **fields):
    """An OpenAI chat body."""
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


class Site:
    """Topics, a database and the variables of one group of tests."""

    def __init__(self, broker, redis_url, database, **streams):
        self.env = {
            "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "RAMPMETER_REDIS__URL": redis_url.rsplit("/", 1)[0] + f"/{database}",
            "RAMPMETER_REDIS__TIMEOUT_S": "1",
            "RAMPMETER_TOPICS__PREFIX": f"s{uuid.uuid4().hex[:8]}.",
            "RAMPMETER_TOPICS__LANDING_PARTITIONS": "2",
            "RAMPMETER_TOPICS__REPLY_PARTITIONS": "2",
            "RAMPMETER_POOLS": json.dumps({"default": {"lane_partitions": 2}, "cpu": {"lane_partitions": 1}}),
            "RAMPMETER_STREAMS": json.dumps({"session_timeout_s": 6, **streams}),
        }
        self.settings = StreamsSettings(
            kafka={"bootstrap.servers": broker.bootstrap_servers},
            redis={"url": self.env["RAMPMETER_REDIS__URL"]},
            topics={
                "prefix": self.env["RAMPMETER_TOPICS__PREFIX"], "landing_partitions": 2, "reply_partitions": 2,
            },
            pools=json.loads(self.env["RAMPMETER_POOLS"]),
            streams=json.loads(self.env["RAMPMETER_STREAMS"]),
        )  # fmt: skip
        clients.redis_sync(self.settings).flushdb()
        admin.apply(self.settings)
        self._logs = []

    def log(self, *names):
        made = TopicLog(self.settings, *names)
        self._logs.append(made)
        return made

    def send(self, value, topic="requests.medium.short", key=b"acme", headers=(), partition=0, **producer):
        return send(self.settings, topic, [(value, key, list(headers), partition)], **producer)[0]

    def committed(self, topic):
        """Committed and end offsets of a landing topic, summed."""
        group = clients.consumer(self.settings, self.settings.topic("rampmeter-streams"))
        try:
            spots = [TopicPartition(self.settings.topic(topic), p) for p in range(2)]
            done = sum(max(0, tp.offset) for tp in group.committed(spots, timeout=10))
            return done, sum(group.get_watermark_offsets(tp, timeout=10)[1] for tp in spots)
        finally:
            group.close()

    def all_is_read(self, topics):
        """The streams group has committed every record of these."""
        return all(committed == end for committed, end in map(self.committed, topics))

    def close(self):
        for log in self._logs:
            log.close()
        mine = [name for name in admin.partition_counts(self.settings) if name.startswith(self.settings.topics.prefix)]
        deleting = clients.admin(self.settings)
        for future in deleting.delete_topics(mine).values():
            future.result()
