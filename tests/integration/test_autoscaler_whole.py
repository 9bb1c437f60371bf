"""The autoscaler sizes a fleet of real consumers, while their own broker goes away and loses a topic."""

import json
import os
import sys

import pytest
from confluent_kafka import TopicPartition

from tests.support import started
from tests.support.gpu import wait_until
from topics import admin, catalog, clients, codec
from topics.local_broker import LocalBroker
from topics.outcomes import Outcome
from topics.records import Length, Tier

CHANGES = ("first_record", "scale_up", "scale_down")
SHORTS, EXPIRED = 160, 50
LIMIT_S = 120


class Fleet:
    """The autoscaler as a process, with consumers of its own, and what it decided."""

    def __init__(self, rig, folder):
        scaling = {"POOLS": {"default": {"min_replicas": 0, "max_replicas": 2}}, "TARGET": "process", "PERIOD_S": 0.5}
        scaling |= {"TARGET_DRAIN_S": 4, "DOWN_AFTER_S": 2, "IDLE_AFTER_S": 3, "COOLDOWN_S": 1}
        scaling |= {"FORECAST_WINDOW_S": 6, "GRACE_S": 60}
        gpu = {"ENGINE": "simulated", "SPEED": 4, "WINDOW_REQUESTS": 4, "LEASE_S": 10, "COMMIT_INTERVAL_S": 0.2}
        gpu |= {"GRACE_S": 60, "DELIVERY_S": 60}  # nobody is killed here, and a busy machine is slow
        env = {f"RAMPMETER_AUTOSCALER__{name}": _text(value) for name, value in scaling.items()}
        env |= {f"RAMPMETER_GPU__{name}": _text(value) for name, value in gpu.items()}
        self._rig, self.log_path = rig, folder / "autoscaler.log"
        with self.log_path.open("w") as log:
            self.process = started.popen(
                [sys.executable, "-m", "autoscaler"], env={**os.environ, **env}, stderr=log, cwd=folder
            )

    def made(self, *reasons):
        """Decisions of these reasons, or all, from the log topic."""
        return [one for one in self._rig.decisions() if one.stage == "scale" and (not reasons or one.reason in reasons)]

    def counts(self):
        return [one.inputs["replicas"] for one in self.made(*CHANGES)]

    def has_said(self, words):
        return words in self.log_path.read_text()

    def wait_for(self, condition, what):
        try:
            wait_until(condition, what, limit_s=LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{what}:\n{self.log_path.read_text()}") from error


def _text(value):
    return value if isinstance(value, str) else json.dumps(value)


@pytest.fixture
def broker(tmp_path):
    with LocalBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def rig(rig_on, broker):
    return rig_on(broker)


@pytest.fixture
def fleet(rig, tmp_path):
    expire(rig, catalog.lane(rig.settings, "default", Tier.LOW, Length.SHORT))
    fleet = Fleet(rig, tmp_path)
    yield fleet
    fleet.process.terminate()
    assert fleet.process.wait(90) == 0, fleet.log_path.read_text()


def expire(rig, lane):
    """History that retention took before anybody had committed anything."""
    rig.put(*(rig.work(f"old-{n}") for n in range(EXPIRED)), lane=lane, partition=0)
    admin_client = clients.admin(rig.settings)  # named, since the call dies with it
    (done,) = admin_client.delete_records([TopicPartition(lane, 0, EXPIRED)]).values()
    done.result(10)


def put_in_transaction(rig, *works):
    """The end of a transaction leaves a marker behind the records, which nobody can read or finish."""
    producer = clients.producer(rig.settings, delivered_within_s=30.0, transactional_id="test")
    producer.init_transactions()
    producer.begin_transaction()
    for work in works:
        producer.produce(rig.lane(), value=codec.encode(work), key=work.request.id.encode())
    producer.commit_transaction()


def test_a_load_brings_consumers_and_neither_outages_nor_its_end_cost_a_request(rig, broker, fleet):
    fleet.wait_for(lambda: fleet.has_said("started"), "it starts")
    put_in_transaction(rig, *(rig.work(f"short-{n}", output_tokens=300) for n in range(SHORTS)))
    fleet.wait_for(lambda: 2 in fleet.counts(), "a second consumer")
    assert fleet.made(*CHANGES)[0].inputs["lag_records"] < SHORTS + EXPIRED, "what has expired counts"
    fleet.wait_for(lambda: len(rig.replies()) > SHORTS / 10, "they serve")
    before = fleet.counts()
    broker.stop()
    fleet.wait_for(lambda: fleet.has_said("reason=lag_unavailable"), "the outage is noticed")
    broker.start()
    for partition in range(2):  # whoever goes has work that lasts
        rig.put(rig.work(f"long-{partition}", output_tokens=2500), partition=partition)
    fleet.wait_for(lambda: len(rig.replies()) >= SHORTS + 2, "all answers")
    fleet.wait_for(lambda: fleet.counts()[-1] == 0, "nobody is needed")
    counts = fleet.counts()
    assert counts[: len(before)] == before
    replies = rig.by_id().values()
    assert len(replies) == SHORTS + 2
    assert {(reply.outcome, reply.attempt) for reply in replies} == {(Outcome.COMPLETED, 1)}

    unread = len(fleet.made("lag_unavailable"))
    gone, admin_client = catalog.lane(rig.settings, "default", Tier.AGED, Length.LONG), clients.admin(rig.settings)
    (done,) = admin_client.delete_topics([gone]).values()
    done.result(10)
    fleet.wait_for(lambda: len(fleet.made("lag_unavailable")) > unread, "the missing topic is noticed")
    rig.put(*(rig.work(f"more-{n}") for n in range(20)))
    assert fleet.counts() == counts, "a count was made of the lanes that are left"
    admin.apply(rig.settings)
    fleet.wait_for(lambda: len(rig.by_id()) == SHORTS + 22, "all others")
    assert fleet.counts()[: len(counts) + 1] in ([*counts, 1], [*counts, 2])
