"""The round: sense, decide, act, tell."""

import threading

import pytest
from prometheus_client import CollectorRegistry

from autoscaler.admissions import Before
from autoscaler.backlog import Backlog, LaneBacklog
from autoscaler.fleet import Fleet
from autoscaler.loop import Loop, Ports
from autoscaler.metrics import STATES, Metrics
from autoscaler.settings import AutoscalerSettings
from autoscaler.target import Unstarted
from autoscaler.targets.dry_run import DryRunTarget
from rampmeter.hindsight import redecide
from tests.support.clock import FakeClock
from topics.errors import LagUnavailable
from topics.records import Length, Tier
from topics.settings import load


class World:
    """Everything around the loop, in memory; another target may act on something real."""

    def __init__(self, acts_on=None, **scaling):
        self.lag, self.mean_units, self.fleet, self.broker_down = {}, 100.0, Fleet(), set()
        self.before = {}
        self.decisions, self.target, self.clock = [], acts_on or DryRunTarget(), FakeClock()
        self.registry = CollectorRegistry()
        pools = {"default": {"max_replicas": 4}, "cpu": {"max_replicas": 1}}
        defaults = {"pools": pools, "target": "dry-run", "up_after_s": 0, "down_after_s": 0, "cooldown_s": 0}
        settings = load(AutoscalerSettings, autoscaler={**defaults, **scaling})
        metrics = Metrics(settings.autoscaler.scaled, self.registry)
        self.loop = Loop(
            settings,
            self.clock,
            Ports(self, _Fleets(self), _Admissions(self), self.target, self.decisions.append),
            metrics,
        )

    def read(self, pool):
        if pool in self.broker_down:
            raise LagUnavailable("no answer")
        lag = self.lag.get(pool, 0)
        lane = LaneBacklog(
            Tier.HIGH,
            Length.SHORT,
            f"lanes.{pool}",
            lag,
            lag * self.mean_units,
            3.0,
            0,
            100.0,
            (lag * self.mean_units / 4,) * 4,
        )
        return Backlog(pool, (lane,))

    def round(self, times=1):
        for _ in range(times):
            self.loop.make_round()
            self.clock.advance(1.0)
        return self.target.replicas("default")

    def hpa_metric(self, name):
        return self.registry.get_sample_value(f"inference_{name}", {"pool": "default"})

    def metric(self, name, **labels):
        return self.registry.get_sample_value(f"rampmeter_autoscaler_{name}", {"pool": "default", **labels})


class _Admissions:
    def __init__(self, world):
        self._world = world

    def read(self):
        if "decisions" in self._world.broker_down:
            raise LagUnavailable("no answer")
        return self._world.before


class _Fleets:
    def __init__(self, world):
        self._world = world

    def read(self):
        if "telemetry" in self._world.broker_down:
            raise LagUnavailable("no answer")
        return {"default": self._world.fleet}


@pytest.fixture
def world():
    return World()


def test_the_minimum_starts_at_once_and_the_backlog_adds_more(world):
    assert world.round() == 1
    world.lag["default"] = 300
    assert world.round() == 3
    assert world.target.replicas("cpu") == 1


def test_the_minimum_does_not_wait_for_a_reading(world):
    world.broker_down |= {"default", "cpu", "telemetry"}
    stop = threading.Event()
    stop.set()
    world.loop.run(stop)
    assert world.target.replicas("default") == 1


def test_every_change_is_published_with_its_inputs(world):
    world.round()
    world.lag["default"] = 300
    world.round()
    made = world.decisions[-1]
    assert (made.id, made.stage, made.verdict, made.reason) == ("default", "scale", "up", "scale_up")
    expected = {"replicas_before": 1, "replicas": 3, "lag_records": 300, "waiting_units": 30_000.0, "partitions": 4}
    assert {name: made.inputs[name] for name in expected} == expected
    assert made.settings_hash


class _ScarceTarget(DryRunTarget):
    """Two of its pods run."""

    def unstarted(self, pool):
        missing = max(0, self.replicas(pool) - 2)
        return Unstarted(missing, missing)


def test_a_decision_and_the_metrics_say_what_does_not_run(world):
    world.round()
    assert world.decisions[-1].inputs.keys().isdisjoint({"pending_pods", "unschedulable_pods"})
    assert world.metric("unstarted_pods", state="pending") is None
    scarce = World(_ScarceTarget())
    scarce.lag["default"] = 1000
    scarce.round(3)
    assert {state: scarce.metric("unstarted_pods", state=state) for state in STATES} == dict.fromkeys(STATES, 2)
    scarce.lag["default"] = 0
    scarce.round()
    made = scarce.decisions[-1]
    assert (made.verdict, made.inputs["pending_pods"], made.inputs["unschedulable_pods"]) == ("down", 2, 2)
    assert redecide.differences(made, None) == []


def test_a_missing_reading_holds_says_so_once_and_is_counted(world):
    world.lag["default"] = 300
    world.round(2)
    told = len(world.decisions)
    world.broker_down.add("default")
    assert world.round(3) == 3
    assert [(d.id, d.verdict, d.reason) for d in world.decisions[told:]] == [("default", "hold", "lag_unavailable")]
    assert world.decisions[-1].inputs["problem"] == "no answer"
    assert world.metric("lag_available") == 0
    assert world.metric("decisions_total", reason="lag_unavailable") == 3
    assert world.loop.complaint() == "default: no answer"
    world.broker_down.clear()
    world.round()
    assert world.metric("lag_available") == 1
    assert world.loop.complaint() is None


def test_one_pool_without_a_reading_does_not_hold_the_other(world):
    world.broker_down.add("cpu")
    world.lag["default"] = 300
    assert world.round(2) == 3


def test_work_that_runs_already_asks_for_no_more_replicas(world):
    world.lag["default"], world.fleet = 300, Fleet(ready=1, running_units=25_000.0)
    assert world.round(2) == 1


def test_without_telemetry_the_backlog_alone_decides(world):
    world.lag["default"] = 300
    world.broker_down.add("telemetry")
    assert world.round(2) == 3


def test_a_measured_rate_replaces_the_nominal_one(world):
    world.lag["default"], world.fleet = 300, Fleet(ready=1, rates_units_per_s=(3000.0,))
    assert world.round(2) == 1
    assert world.metric("service_units_per_second") == pytest.approx(3000.0)
    assert world.metric("service_measured") == 1


def test_what_waits_before_the_lanes_counts_and_without_the_decisions_the_lanes_alone_decide(world):
    world.before = {"default": Before((0.0, 30_000.0, 0.0, 0.0), held_requests={(Tier.LOW, Length.LONG): 7})}
    assert world.round(2) == 3
    assert world.metric("held_units") == pytest.approx(30_000.0)
    assert world.metric("held_requests", tier="low", length="long") == 7
    assert world.metric("held_requests", tier="high", length="long") == 0
    world.broker_down.add("decisions")
    assert world.round(2) == 1
    assert world.metric("held_units") is None
    assert world.metric("held_requests", tier="low", length="long") is None


def test_too_few_gpus_go_to_the_pool_of_higher_priority_and_the_other_says_why():
    pools = {"cpu": {"max_replicas": 1}, "default": {"max_replicas": 4, "priority": 5}}
    world = World(pools=pools, gpu_quota=3)
    world.lag |= {"default": 300, "cpu": 300}
    world.round(2)
    assert (world.target.replicas("default"), world.target.replicas("cpu")) == (2, 1)
    assert world.metric("decisions_total", reason="at_quota") == 1
    held = [made for made in world.decisions if made.reason == "at_quota"][-1]
    assert (held.id, held.inputs["granted_replicas"]) == ("default", 2)
    assert redecide.differences(held, None) == []


def test_without_telemetry_running_work_has_no_series(world):
    world.fleet = Fleet(ready=1, running_units=70.0)
    world.round()
    assert world.metric("running_units") == pytest.approx(70.0)
    world.broker_down.add("telemetry")
    world.round()
    assert world.metric("running_units") is None


def test_series_are_there_before_the_first_round(world):
    assert world.metric("desired_replicas") == 0
    assert world.metric("lag_available") == 0
    assert world.metric("lag_records", tier="aged", length="long") == 0
    assert world.metric("decisions_total", reason="at_max") == 0


def test_a_round_shows_what_it_read(world):
    world.lag["default"] = 20
    world.round(2)
    lane = {"tier": "high", "length": "short"}
    assert world.metric("lag_records", **lane) == 20
    assert world.metric("backlog_units", **lane) == pytest.approx(2000.0)
    assert world.metric("oldest_age_seconds", **lane) == pytest.approx(3.0)
    assert world.metric("backlog_seconds") == pytest.approx(2.0)


def test_an_hpa_reads_queue_and_seconds_of_work_and_nothing_while_they_are_not_known(world):
    world.broker_down.add("default")
    world.round()
    assert (world.hpa_metric("queue_length"), world.hpa_metric("drain_seconds")) == (None, None)
    world.broker_down.clear()
    world.lag["default"] = 25
    world.round()
    assert (world.hpa_metric("queue_length"), world.hpa_metric("drain_seconds")) == (25.0, 2.5)
    world.broker_down.add("default")
    world.round()
    assert (world.hpa_metric("queue_length"), world.hpa_metric("drain_seconds")) == (None, None)


def test_a_target_that_something_keeps_from_sizing_holds_and_says_why(world, monkeypatch):
    world.lag["default"] = 300
    world.target.scale("default", 2)
    monkeypatch.setattr(world.target, "problem", lambda pool: "an HPA is there too" if pool == "default" else None)
    assert world.round() == 2
    assert world.loop.complaint() == "default: an HPA is there too"
    assert world.decisions[0].inputs["problem"] == "an HPA is there too"


def test_a_start_ends_no_consumer_that_is_there_already(world):
    world.target.scale("default", 3)
    stop = threading.Event()
    stop.set()
    world.loop.run(stop)
    assert (world.target.replicas("default"), world.target.replicas("cpu")) == (3, 1)
