"""The autoscaler as a process, and what it learns from telemetry, on a real broker."""

import contextlib
import json
import os
import signal
import sys
import time
import urllib.request

import pytest
from confluent_kafka import TopicPartition

from autoscaler import following
from autoscaler.admissions import AdmissionReader, Before
from autoscaler.fleet import FleetReader
from autoscaler.targets.process import _free_port
from rampmeter import scale_log
from rampmeter.hindsight import redecide
from tests.support import command, started
from tests.support.builders import work
from tests.support.clock import FakeClock
from topics import catalog, clients, codec
from topics.clock import SystemClock
from topics.errors import LagUnavailable
from topics.records import Decision, Length, Tier
from topics.telemetry import Telemetry


def send(settings, name, records):
    """Put (key, record, headers) on a topic."""
    producer = clients.producer(settings, enable_idempotence=False)
    for key, record, headers in records:
        producer.produce(settings.topic(name), codec.encode(record), key.encode(), headers=headers)
    assert producer.flush(10) == 0


def report(consumer, state="ready", pool="default", age_s=0.0, **fields):
    telemetry = Telemetry(consumer=consumer, pool=pool, state=state, at_s=time.time() - age_s, **fields)
    return consumer, telemetry, []


def read_until(reader, is_enough, within_s=60.0):
    """Read until there is enough; a topic that was just created may have no leader for a moment."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(LagUnavailable):
            if is_enough(fleets := reader.read()):
                return fleets
        time.sleep(0.05)
    pytest.fail("the telemetry did not come")


def test_the_fleet_is_what_spoke_lately_by_pool(settings):
    reports = [
        report("a", inflight_units=10.0),
        report("a", inflight_units=40.0),
        report("b", inflight_units=5.0),
        report("leaving", state="draining", inflight_units=7.0),
        report("left", state="gone", inflight_units=1000.0),
        report("silent", age_s=20.0, inflight_units=1000.0),
        report("other", pool="cpu"),
    ]
    with FleetReader(settings, FakeClock(time.time()), 5.0, stale_s=5.0) as reader:
        read_until(reader, lambda _: True)
        send(settings, "telemetry", reports)
        fleets = read_until(reader, lambda fleets: "cpu" in fleets)
    assert fleets["default"].ready == 2
    assert fleets["default"].running_units == pytest.approx(52.0)
    assert fleets["cpu"].ready == 1


def test_partitions_that_change_their_owner_are_seen_once(settings):
    def owner(name, *partitions):
        return report(name, lanes={"lanes.default.high.short": list(partitions)})

    with FleetReader(settings, FakeClock(time.time()), 5.0, stale_s=5.0) as reader:
        read_until(reader, lambda _: True)
        send(settings, "telemetry", [owner("a", 0, 1), report("other", pool="cpu")])
        assert not read_until(reader, bool)["default"].is_moving
        send(settings, "telemetry", [owner("a", 0), owner("b", 1)])
        assert not read_until(reader, lambda fleets: fleets["default"].is_moving)["cpu"].is_moving
        assert not reader.read()["default"].is_moving


def test_telemetry_of_before_the_start_counts_too(settings):
    send(settings, "telemetry", [report("a")])
    with FleetReader(settings, FakeClock(time.time()), 5.0, stale_s=5.0) as reader:
        fleets = read_until(reader, bool)
    assert fleets["default"].ready == 1


def test_a_consumer_whose_clock_is_ahead_counts_no_longer_than_others(settings):
    send(settings, "telemetry", [report("ahead", age_s=-3600.0)])
    clock = FakeClock(time.time())
    with FleetReader(settings, clock, 5.0, stale_s=5.0) as reader:
        assert read_until(reader, bool)["default"].ready == 1
        clock.advance(6)
        assert reader.read() == {}


def test_what_admission_holds_back_is_read_from_its_decisions_also_those_of_before_the_start(settings):
    def decided(identity, verdict, reason="fair_share"):
        inputs = {"pool": "default", "priority": "low", "cost_units": 20.0}
        stage = {"stage": "admission", "at_s": time.time(), "by": "w1"}
        return identity, Decision(id=identity, verdict=verdict, reason=reason, inputs=inputs, **stage), []

    send(settings, "decisions", [decided(f"r{n}", "hold") for n in range(3)])
    with AdmissionReader(settings, SystemClock(), 5.0) as reader:
        read_until(reader, lambda found: found.get("default") == Before((0.0, 0.0, 60.0, 0.0)))
        send(settings, "decisions", [decided("r0", "admit", "none"), decided("r1", "reject", "lane_wait")])
        read_until(reader, lambda found: found.get("default") == Before((0.0, 0.0, 20.0, 0.0), 20.0))


def test_what_was_not_yet_read_to_its_end_is_unknown_and_not_empty(settings, monkeypatch):
    send(settings, "telemetry", [report("a")])
    with FleetReader(settings, FakeClock(time.time()), 5.0, stale_s=60.0) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(following, "_MAX_BATCHES", 0)  # nothing has come yet
            with pytest.raises(LagUnavailable, match="telemetry, partition 0: not yet read to its end"):
                reader.read()
        assert read_until(reader, lambda _: True)["default"].ready == 1


class Autoscaler:
    """The process, with its status page."""

    def __init__(self, tmp_path, **variables):
        self.port = _free_port()
        env = {**os.environ, "RAMPMETER_STATUS_PORT": str(self.port), **variables}
        self.log_path = tmp_path / "autoscaler.log"
        with self.log_path.open("w") as log:
            self.popen = started.popen([sys.executable, "-m", "autoscaler"], env=env, stderr=log, cwd=tmp_path)

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def wait_for(self, condition, within_s=60.0):
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            if condition():
                return
            time.sleep(0.05)
        pytest.fail(f"not within {within_s} s; it said:\n{self.log_path.read_text()}")

    def stop(self):
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(15)


@pytest.fixture
def start(settings, tmp_path):
    """Start the process against this test's topics; whatever is left is killed."""
    started = []

    def make(**variables):
        started.append(Autoscaler(tmp_path, RAMPMETER_AUTOSCALER__TARGET="dry-run", **variables))
        return started[-1]

    yield make
    for each in started:
        each.popen.kill()
        each.popen.wait()


def read_decisions(settings):
    """All decisions so far."""
    name, found = settings.topic("decisions"), []
    reader = clients.reader(settings)
    reader.assign([TopicPartition(name, p, 0) for p in range(settings.topics.landing_partitions)])
    ends = 0
    while ends < settings.topics.landing_partitions:
        for message in reader.consume(100, timeout=1.0):
            if message.error() is None:
                found.append(codec.decode_decision(message.value()))
            else:
                ends += 1
    reader.close()
    return found


def test_a_backlog_is_answered_within_seconds_and_the_decision_says_why(settings, start, tmp_path):
    scaler = start()
    scaler.wait_for(lambda: scaler.get("/readyz") == "ok\n")
    headers = [("rampmeter_cost", b"500")]
    lane = catalog.lane(settings, "default", Tier.MEDIUM, Length.LONG).removeprefix(settings.topics.prefix)
    send(settings, lane, [(f"r{n}", work(), headers) for n in range(100)])
    began_s = time.monotonic()
    wanted = 'rampmeter_autoscaler_desired_replicas{pool="default"} 2.0'
    scaler.wait_for(lambda: wanted in scaler.get("/metrics"))
    assert time.monotonic() - began_s < 5.0, scaler.log_path.read_text()
    metrics = scaler.get("/metrics")
    assert 'lag_records{length="long",pool="default",tier="medium"} 100.0' in metrics
    assert 'backlog_units{length="long",pool="default",tier="medium"} 50000.0' in metrics
    assert scaler.get("/livez") == "ok\n"
    assert scaler.stop() == 0
    up = [made for made in read_decisions(settings) if made.reason == "scale_up"]
    assert [(made.id, made.verdict, made.inputs["replicas"]) for made in up] == [("default", "up", 2)]
    assert up[0].inputs["lag_records"] == 100
    assert redecide.differences(up[0], None) == []
    ours = {name: value for name, value in os.environ.items() if name.startswith("RAMPMETER_")}
    explained = command.run("autoscaler", "explain", "--pool", "default", cwd=tmp_path, env=ours)
    assert explained.returncode == 0, explained.stderr
    assert "1 > 2" in explained.stdout
    assert "scale_up: more are needed" in explained.stdout
    told = scale_log.read(settings, ["default"], time.time() - 60.0, last=2)
    assert told == [made for made in read_decisions(settings) if made.id == "default"][-2:]
    assert scale_log.read(settings, ["cpu"], time.time() - 60.0, last=2) == []


def test_without_a_broker_it_says_so_and_ends_with_69(start):
    scaler = start(RAMPMETER_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert scaler.popen.wait(30) == 69
    assert "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS" in scaler.log_path.read_text()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"RAMPMETER_POOLS": json.dumps({"default": {"lane_partitions": 3}, "cpu": {"lane_partitions": 1}})},
            ["2 partitions", "want 3"],
        ),
        (
            {"RAMPMETER_AUTOSCALER__PERIOD_S": "soon", "RAMPMETER_AUTOSCALER__GRACE_S": "-1"},
            ["RAMPMETER_AUTOSCALER__PERIOD_S", "RAMPMETER_AUTOSCALER__GRACE_S"],
        ),
    ],
)
def test_what_cannot_work_ends_with_78_and_names_the_fault(start, variables, said):
    scaler = start(**variables)
    assert scaler.popen.wait(30) == 78
    text = scaler.log_path.read_text()
    assert [words for words in said if words not in text] == [], text
