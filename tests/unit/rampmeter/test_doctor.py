"""What the doctor makes of what it is told."""

import pytest

from rampmeter.doctor import diagnosis, findings, ours, redis, show
from rampmeter.doctor.diagnosis import Pattern, Pool
from rampmeter.doctor.findings import Area, Finding, Health
from topics.telemetry import Telemetry

NOW_S = 1000.0


def told(consumer="g1", *, at_s=NOW_S, state="ready", **fields):
    return Telemetry(consumer=consumer, pool="default", state=state, at_s=at_s, **fields)


def pool(*reports, **fields):
    return Pool("default", 10.0, reports={one.consumer: one for one in reports}, **{"lag_records": 0, **fields})


def shows(found):
    return {line.pattern: line.shows for line in diagnosis.judge(found, NOW_S)}


BUSY = {"gpu_busy_ratio": 0.97, "free_kv_tokens": 500, "total_kv_tokens": 1000, "capacity_units_per_s": 100.0}
IDLE = {"gpu_busy_ratio": 0.1, "free_kv_tokens": 900, "total_kv_tokens": 1000, "capacity_units_per_s": 100.0}


@pytest.mark.parametrize(
    ("found", "pattern"),
    [
        (pool(told(**IDLE), asked_units={"loud": 9000.0, "a": 500.0}, looked_at=100, lag_records=50), Pattern.FLOOD),
        (pool(asked_units={"loud": 10.0}, looked_at=100, refused=6), Pattern.FLOOD),
        (pool(told(**IDLE), told("g2", at_s=NOW_S - 60)), Pattern.HELD_UP),
        (pool(lag_records=3), Pattern.HELD_UP),
        (pool(told(**IDLE), short_runs=20, short_long_runs=2), Pattern.HELD_UP),
        (pool(told(**IDLE), short_waits_s=[0.3] * 9), Pattern.HELD_UP),
        (pool(told(**BUSY), lag_records=9), Pattern.COMPUTE),
        (pool(told(inflight_units=95.0, capacity_units=100.0), lag_records=9), Pattern.COMPUTE),
        (pool(told(free_kv_tokens=5, total_kv_tokens=1000)), Pattern.MEMORY),
        (pool(told(gpu_memory_used_ratio=0.97)), Pattern.MEMORY),
        (pool(told(intake="closed by memory", gpu_busy_ratio=0.99), lag_records=9), Pattern.MEMORY),
    ],
)
def test_each_pattern_is_seen_alone(found, pattern):
    seen = shows(found)
    assert [one for one, is_so in seen.items() if is_so] == [pattern]


def test_a_pool_that_is_well_shows_none_and_what_is_unknown_is_said_to_be():
    assert set(shows(pool(told(**IDLE), asked_units={"a": 10.0}, looked_at=3)).values()) == {False}
    unknown = shows(Pool("default", 10.0, reports={"g1": told()}))
    assert (unknown[Pattern.HELD_UP], unknown[Pattern.COMPUTE], unknown[Pattern.MEMORY]) == (None, None, None)
    left = pool(told(state="gone", at_s=NOW_S - 60), told("long-ago", at_s=NOW_S - 9000))
    assert shows(left)[Pattern.HELD_UP] is False


def test_each_pattern_that_shows_says_what_to_do():
    lines = list(diagnosis.judge(pool(lag_records=3), NOW_S))
    assert {bool(line.advice) for line in lines if line.shows} == {True}
    assert "held_up" in show.judgements(lines)
    assert set(diagnosis.ADVICE) == set(Pattern)


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ([], 0),
        ([(Area.REDIS, Health.WARN), (Area.ACCESS, Health.UNKNOWN)], 0),
        ([(Area.ACCESS, Health.BAD)], 1),
        ([(Area.ACCESS, Health.BAD), (Area.TOPICS, Health.BAD)], 78),
        ([(Area.SETTINGS, Health.BAD)], 78),
        ([(Area.TOPICS, Health.BAD), (Area.REDIS, Health.DOWN)], 69),
    ],
)
def test_the_status_says_what_is_wrong(wrong, status):
    assert findings.status([Finding(area, health, "x") for area, health in wrong]) == status


@pytest.mark.parametrize(
    ("told_by_redis", "health", "said"),
    [
        ({"role": "slave", "aof_enabled": 1}, Health.BAD, "takes no writes"),
        (
            {"role": "master", "maxmemory": 100, "maxmemory_policy": "allkeys-lru", "aof_enabled": 1},
            Health.BAD,
            "evict",
        ),
        ({"maxmemory": 100, "used_memory": 90, "maxmemory_policy": "noeviction", "aof_enabled": 1}, Health.WARN, "90%"),
        ({"aof_enabled": 0, "save": ""}, Health.WARN, "nothing on disk"),
        ({"aof_enabled": 0}, Health.UNKNOWN, "does not tell whether"),
    ],
)
def test_what_redis_tells_of_itself_is_judged(told_by_redis, health, said):
    (found,) = [one for one in redis.judge(told_by_redis) if one.health is not Health.OK]
    assert (found.health, said in found.what) == (health, True)
    assert found.fix


def test_a_redis_that_keeps_all_it_is_given_is_fine():
    kept = {"maxmemory": 0, "maxmemory_policy": "allkeys-lru", "save": "3600 1", "redis_version": "8.0"}
    assert {one.health for one in redis.judge(kept)} == {Health.OK}


@pytest.mark.parametrize(
    ("ahead_s", "health"),
    [(None, Health.UNKNOWN), (0.1, Health.OK), (-0.6, Health.WARN), (6.0, Health.BAD), (-6.0, Health.BAD)],
)
def test_clocks_may_differ_a_little(ahead_s, health):
    assert ours.clock("Kafka", ahead_s).health is health
