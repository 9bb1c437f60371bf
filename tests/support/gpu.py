"""A GPU consumer process under test, seen through its topics."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

import msgspec
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support import started
from tests.support.builders import body, work
from topics import catalog, clients, codec, keys, orders
from topics.records import Control, ControlAction, ControlKind, Length, Reply, ReplyAddress, Tier

DEADLINE_S = 40.0


class Consumer:
    """One `python -m gpu_consumers`."""

    def __init__(self, log_path, **gpu):
        env = {f"RAMPMETER_GPU__{name.upper()}": str(value) for name, value in gpu.items()}
        self.log_path = log_path
        with log_path.open("wb") as log:
            self.process = started.popen(
                [sys.executable, "-X", "faulthandler", "-m", "gpu_consumers"],
                env={**os.environ, **env},
                stderr=log,
                stdout=log,
            )

    def log(self):
        return self.log_path.read_text()

    def url(self):
        """Where its status is served, once it said so."""
        wait_until(lambda: "status=" in self.log(), "the consumer starts", self)
        return re.search(r"http://[0-9.:]+", self.log()).group()

    def get(self, path):
        try:
            with urllib.request.urlopen(f"{self.url()}/{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name, **labels):
        """The sum of the series with these labels; None when there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [
            float(line.rpartition(" ")[2])
            for line in self.get("metrics")[1].splitlines()
            if re.split(r"[{ ]", line)[0] == f"rampmeter_gpu_{name}" and all(w in line for w in wanted)
        ]
        return sum(found) if found else None

    def wait_ready(self):
        wait_until(lambda: self.get("readyz")[0] == 200, "the consumer is ready", self)
        return self

    def terminate(self):
        self.process.terminate()
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            self.process.send_signal(signal.SIGABRT)  # has it tell where its threads stand
            self.process.wait(DEADLINE_S)
            raise AssertionError(f"it does not end:\n{self.log()}") from error

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE_S)


def wait_until(condition, what, consumer=None, limit_s=DEADLINE_S):
    end_s = time.monotonic() + limit_s
    while not condition():
        ended = consumer is not None and consumer.process.poll() is not None
        if ended or time.monotonic() > end_s:
            raise AssertionError(f"{what}: not within {limit_s} s\n{consumer.log() if consumer else ''}")
        time.sleep(0.05)


class Rig:
    """Feeds lanes, starts consumers, reads what comes out."""

    def __init__(self, settings, tmp_path):
        self.settings, self._tmp_path = settings, tmp_path
        self.consumers = []
        self.producer = clients.producer(settings)
        self._readers = {}
        self.seen = {}
        with clients.redis_sync(settings) as redis:
            # Redis has been there for long: in a new one the first ids may be forgotten ones, to be looked up.
            redis.hset(keys.of(settings).memory(), mapping={"since_ms": 0, "lost": 0})

    def close(self):
        for consumer in self.consumers:
            with suppress(ProcessLookupError):
                consumer.process.kill()
            consumer.process.wait()
        for reader in self._readers.values():
            reader.close()

    def start(self, **gpu):
        """A consumer with a short lease, so that tests of takeover need not wait."""
        defaults = {"engine": "null", "lease_s": 2, "renew_s": 0.5, "held_retry_s": 0.2, "commit_interval_s": 0.2}
        defaults["warm_up_s"] = 0  # what a server was asked is counted
        consumer = Consumer(self._tmp_path / f"gpu{len(self.consumers)}.log", **{**defaults, **gpu})
        self.consumers.append(consumer)
        return consumer

    def lane(self, tier=Tier.MEDIUM, length=Length.SHORT):
        return catalog.lane(self.settings, "default", tier, length)

    def work(self, request_id, *, output_tokens=None, stream=False, reply=None, price=None, attempt=1, **request):
        fields = {"simulated_output_tokens": output_tokens} if output_tokens else {}
        defaults = {
            "id": request_id,
            "arrived_s": time.time(),
            "reply": reply or ReplyAddress(topic=self.settings.topic("replies")),
            "body": msgspec.Raw(body(**fields)),
            "stream": stream,
        }
        return work({**defaults, **request}, price, attempt=attempt, admitted_s=time.time())

    def put(self, *works, lane=None, partition=None):
        for one in works:
            self.put_bytes(codec.encode(one), one.request.id, lane=lane, partition=partition)

    def put_bytes(self, value, key, *, lane=None, partition=None):
        self.producer.produce(
            lane or self.lane(), value=value, key=key.encode(), partition=-1 if partition is None else partition
        )
        self.producer.flush()

    def read(self, name):
        """Everything so far in a topic, as messages."""
        topic = self.settings.topic(name)
        if topic not in self._readers:
            reader = self._readers[topic] = clients.reader(self.settings)
            partitions = reader.list_topics(topic).topics[topic].partitions
            reader.assign([TopicPartition(topic, p, 0) for p in partitions])
        found = self.seen.setdefault(topic, [])
        found += [m for m in self._readers[topic].consume(1000, timeout=0.2) if m.error() is None]
        return found

    def answers(self, name="replies"):
        return [codec.decode_answer(message.value()) for message in self.read(name)]

    def replies(self, name="replies"):
        return [answer for answer in self.answers(name) if isinstance(answer, Reply)]

    def wait_replies(self, count, name="replies", limit_s=DEADLINE_S):
        """Terminal replies by id, once there are `count`; a doubled one fails the test."""
        wait_until(lambda: len(self.replies(name)) >= count, f"{count} replies", self.consumers[-1], limit_s)
        return self.by_id(name)

    def by_id(self, name="replies"):
        replies = self.replies(name)
        made = {reply.id: reply for reply in replies}
        assert len(made) == len(replies), "an id was answered twice"
        return made

    def committed(self, lane=None):
        """Committed positions of a lane's partitions that have one."""
        with_group = clients.consumer(self.settings, catalog.gpu_group(self.settings, "default"))
        topic = lane or self.lane()
        count = self.settings.pools["default"].lane_partitions
        found = with_group.committed([TopicPartition(topic, p) for p in range(count)], timeout=10)
        with_group.close()
        return {tp.partition: tp for tp in found if tp.offset >= 0}

    def dead_letters(self):
        return [codec.decode_dead_letter(message.value()) for message in self.read("dead_letters")]

    def usages(self):
        return [codec.decode_usage(message.value()) for message in self.read("usage")]

    def cancel(self, request_id, tenant=None, at_s=None):
        """Order it as a client or an operator does, now or at a time of the past."""
        order = Control(
            id=f"o-{request_id}",
            action=ControlAction.CANCEL,
            kind=ControlKind.REQUEST,
            name=request_id,
            at_s=time.time(),
            by="test",
            tenant=tenant,
        )
        self.put_control(codec.encode(order), f"request:{request_id}", at_s)

    def drain(self, consumer_id):
        """Order it as the autoscaler does."""
        order = Control(
            id=f"d-{consumer_id}",
            action=ControlAction.DRAIN,
            kind=ControlKind.CONSUMER,
            name=consumer_id,
            at_s=time.time(),
            by="test",
        )
        self.put_control(codec.encode(order), orders.key_of(order))

    def put_control(self, value, key, at_s=None):
        stamp = {}
        if at_s is not None:
            self._believe_senders("control")
            stamp["timestamp"] = int(at_s * 1000)
        self.producer.produce(self.settings.topic("control"), value=value, key=key.encode(), **stamp)
        self.producer.flush()

    def _believe_senders(self, name):
        """Let records be as old as they say: otherwise the broker dates them."""
        entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource("topic", self.settings.topic(name), incremental_configs=[entry])
        admin = clients.admin(self.settings)  # named, since the call dies with it
        for done in admin.incremental_alter_configs([topic]).values():
            done.result()
        wait_until(lambda: self._keeps_stamps(name), "the broker keeps the senders' time")

    def _keeps_stamps(self, name):
        """Whether a record that nobody can read, dated back, comes out as it was put in."""
        spots = []
        self.producer.produce(
            self.settings.topic(name), value=b"probe", key=b"probe", timestamp=1000,
            on_delivery=lambda _, message: spots.append((message.partition(), message.offset())),
        )  # fmt: skip
        self.producer.flush()
        reader = clients.reader(self.settings)
        reader.assign([TopicPartition(self.settings.topic(name), *spots[0])])
        found = reader.consume(1, timeout=10)
        reader.close()
        return bool(found) and found[0].timestamp()[1] == 1000

    def decisions(self):
        return [codec.decode_decision(message.value()) for message in self.read("decisions")]

    def telemetry(self):
        return [codec.decode_telemetry(message.value()) for message in self.read("telemetry")]


def text_of(reply):
    return json.loads(bytes(reply.body))["choices"][0]["message"]["content"]
