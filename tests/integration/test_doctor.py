"""`doctor`, `topics plan|apply|check` on a real broker and Redis."""

import json

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from typer.testing import CliRunner

from rampmeter import cli, reading
from rampmeter.doctor import kafka, redis
from rampmeter.doctor.findings import Health
from tests.support.builders import WALL_S
from tests.support.streams_worker import wait_until
from topics import clients, codec, drift
from topics.clock import SystemClock
from topics.telemetry import Telemetry


def command(*args, status=0):
    done = CliRunner().invoke(cli.app, [*args, "--json"])
    assert done.exit_code == status, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit | None)
    return json.loads(done.stdout.splitlines()[-1])


def wrong(found):
    return {one["area"]: one for one in found["findings"] if one["health"] in ("bad", "down")}


@pytest.fixture
def drifted(settings):
    name = settings.topic("control")
    entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    changing = clients.admin(settings)
    changing.incremental_alter_configs([resource])[resource].result(timeout=20)
    wait_until(lambda: drift.find(settings), 20)
    return settings


def test_what_is_well_is_well(settings):
    found = command("doctor")
    assert wrong(found) == {}
    assert {one["area"] for one in found["findings"]} == {
        "settings", "versions", "kafka", "topics", "access", "redis", "clocks",
    }  # fmt: skip
    clocks = {one["what"].split()[0]: one["health"] for one in found["findings"] if one["area"] == "clocks"}
    assert clocks == {"Kafka": "ok", "Redis": "ok"}


def test_clocks_are_compared_and_no_follower_is_told_anything(settings):
    clock = SystemClock()
    assert abs(kafka.offset_s(settings, clock)) < 1
    assert abs(redis.offset_s(settings, clock)) < 1
    assert {message.value() for message in reading.whole(settings, settings.topic("control"))} == {None}


def test_a_property_that_has_drifted_is_found_planned_and_set_right(drifted):
    assert wrong(command("doctor", status=78)).keys() == {"topics"}
    (difference,) = command("topics", "check", status=78)["differences"]
    assert "message.timestamp.type=CreateTime" in difference
    (planned,) = command("topics", "plan", status=1)["configs"]
    assert (planned["name"], planned["value"], planned["wanted"]) == (
        "message.timestamp.type", "CreateTime", "LogAppendTime",
    )  # fmt: skip
    assert command("topics", "apply") == {"created": [], "configs": []}
    assert command("topics", "apply", "--configs")["configs"] == [planned]
    assert command("topics", "plan") == {"create": [], "configs": [], "by_hand": []}
    assert command("topics", "check") == {"differences": []}


def test_what_is_missing_is_planned_before_it_is_made(stack_env, monkeypatch):
    for name, value in stack_env.items():
        monkeypatch.setenv(name, value)
    missing = command("topics", "plan", status=1)["create"]
    assert len(missing) == len(command("topics", "apply")["created"]) > 20
    monkeypatch.setenv("RAMPMETER_TOPICS__LANDING_PARTITIONS", "3")
    assert "by_hand" in str(command("topics", "plan", status=1))
    assert wrong(command("doctor", status=78)).keys() == {"topics"}


@pytest.mark.parametrize(
    ("name", "value", "area"),
    [
        ("RAMPMETER_REDIS__URL", "redis://:hidden@127.0.0.1:1/0", "redis"),
        ("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1", "kafka"),
    ],
)
def test_what_does_not_answer_is_named_and_the_rest_is_looked_at(settings, monkeypatch, name, value, area):
    monkeypatch.setattr(kafka, "_TIMEOUT_S", 1.0)
    monkeypatch.setenv(name, value)
    found = command("doctor", status=69)
    assert wrong(found).keys() == {area}
    assert wrong(found)[area]["fix"]
    assert "hidden" not in str(found)
    assert {"redis", "kafka", "clocks"} <= {one["area"] for one in found["findings"]}


def test_wrong_settings_are_all_named(monkeypatch):
    monkeypatch.setenv("RAMPMETER_TOPICS__LANDING_PARTITIONS", "none")
    monkeypatch.setenv("RAMPMETER_STREAM__X", "1")
    found = command("doctor", status=78)
    assert len([one for one in found["findings"] if one["health"] == Health.BAD]) == 2


def test_a_consumer_that_fell_silent_is_diagnosed(settings):
    dead = Telemetry(consumer="g7", pool="default", state="ready", at_s=SystemClock().wall_s() - 60)
    gone = Telemetry(consumer="g8", pool="default", state="gone", at_s=WALL_S)
    producer = clients.producer(settings)
    for told in (dead, gone):
        producer.produce(settings.topic("telemetry"), codec.encode(told), told.consumer.encode())
    assert producer.flush(20) == 0
    lines = {(one["pool"], one["pattern"]): one for one in command("doctor", "--diagnose", status=1)["patterns"]}
    assert len(lines) == 4 * len(settings.pools)
    assert [place for place, one in lines.items() if one["shows"]] == [("default", "held_up")]
    assert "g7" in lines["default", "held_up"]["why"]


def test_rights_are_printed_without_asking_anyone(monkeypatch):
    monkeypatch.setenv("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("RAMPMETER_TOPICS__PREFIX", "p.")
    found = command("doctor", "--acls")["acls"]
    assert {one["process"] for one in found} == {"streams", "gpu_consumers", "autoscaler", "rampmeter", "upstream"}
    assert all(one["name"].startswith("p.") for one in found)
