"""What the autoscaler accepts as settings."""

import json

import pytest

from autoscaler.settings import AutoscalerSettings
from topics.errors import ConfigError
from topics.settings import load


def test_the_default_pool_is_scaled_between_one_and_its_partitions():
    limits = load(AutoscalerSettings).limits("default")
    assert (limits.min_replicas, limits.most) == (1, 4)


def test_pools_and_their_environment_come_as_json(monkeypatch):
    pools = {"cpu": {"max_replicas": 1, "env": {"RAMPMETER_GPU__ENGINE": "llama"}}}
    monkeypatch.setenv("RAMPMETER_AUTOSCALER__POOLS", json.dumps(pools))
    scaled = load(AutoscalerSettings).autoscaler.scaled
    assert list(scaled) == ["cpu"]
    assert scaled["cpu"].env == {"RAMPMETER_GPU__ENGINE": "llama"}


def test_one_bound_can_be_set_alone(monkeypatch):
    monkeypatch.setenv("RAMPMETER_AUTOSCALER__POOLS__DEFAULT__MAX_REPLICAS", "2")
    assert load(AutoscalerSettings).limits("default").most == 2


def test_a_slow_round_must_not_look_like_a_dead_process():
    with pytest.raises(ConfigError, match="stale_after_s is 8, but a round"):
        load(AutoscalerSettings, autoscaler={"stale_after_s": 8, "read_timeout_s": 4})


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ({"gpu9": {}}, "gpu9"),
        ({"default": {"min_replicas": 3, "max_replicas": 2}}, "min_replicas is 3"),
        ({"default": {"min_replicas": 5, "max_replicas": 9}}, "4 lane partitions"),
        ({"default": {"max": 2}}, "RAMPMETER_AUTOSCALER__POOLS__DEFAULT__MAX"),
    ],
)
def test_what_cannot_work_is_refused_by_name(pools, said):
    with pytest.raises(ConfigError, match=said):
        load(AutoscalerSettings, autoscaler={"pools": pools})
