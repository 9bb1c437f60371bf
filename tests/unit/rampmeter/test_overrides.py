import pytest

from gpu_consumers.settings import GpuSettings
from rampmeter.hindsight import overrides
from streams.settings import StreamsSettings
from topics.errors import ConfigError
from topics.records import Priority

SETTINGS = StreamsSettings(models={"llama-3.1-8b": {}}, default_model="llama-3.1-8b")


def changed(*texts, settings=SETTINGS):
    changes = overrides.parsed(texts)
    overrides.require_known(changes, [settings])
    return overrides.changed(settings, changes)


@pytest.mark.parametrize(
    ("text", "read", "value"),
    [
        ("streams.fair.hold_s=0.5", lambda s: s.streams.fair.hold_s, 0.5),
        ("streams.length_mode=declared", lambda s: s.streams.length_mode, "declared"),
        ("streams.max_wait_s.high=7", lambda s: s.streams.max_wait_s[Priority.HIGH], 7.0),
        ("streams.aged_after_by_class.low=7", lambda s: s.streams.aged_after_by_class[Priority.LOW], 7.0),
        ("streams.tenant_budgets.a.refill_units_per_s=7", lambda s: s.streams.tenant_budgets["a"].burst_s, 60.0),
        ("topics.defer_delays_s=[2, 9]", lambda s: s.topics.defer_delays_s, (2, 9)),
        ("pools.default.high_weight=3", lambda s: s.pools["default"].high_weight, 3.0),
        ("models.llama-3.1-8b.coefficient=3", lambda s: s.models["llama-3.1-8b"].coefficient, 3.0),
    ],
)
def test_a_setting_is_changed_by_its_name_and_the_others_stay(text, read, value):
    found = changed(text)
    assert read(found) == value
    assert found.short_hash() != SETTINGS.short_hash()
    assert changed().short_hash() == SETTINGS.short_hash()


def test_later_ones_add_to_earlier_ones():
    found = changed("streams.tenant_budgets.a.refill_units_per_s=7", "streams.tenant_budgets.a.burst_s=9")
    assert found.streams.tenant_budgets["a"].cap_units == 63.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "streams.fair.holds_s=1",
            r"--set streams.fair.holds_s: there is no such setting; did you mean streams.fair.ho",
        ),
        ("nonsense=1", r"--set nonsense: there is no such setting; see `rampmeter config print`"),
        ("streams.fair", r"--set streams.fair: wants NAME=VALUE"),
        ("streams.fair.hold_s=soon", r"RAMPMETER_STREAMS__FAIR__HOLD_S .*valid number"),
        ("streams.class_budgets.highest.burst_s=1", r"high.*medium.*low"),
    ],
)
def test_what_cannot_be_set_is_named(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        changed(text)


def test_a_setting_of_another_process_is_known_when_it_is_asked_too():
    changes = overrides.parsed(["gpu.window_requests=8"])
    overrides.require_known(changes, [SETTINGS, GpuSettings()])
    assert overrides.changed(SETTINGS, changes).short_hash() == SETTINGS.short_hash()
    assert overrides.changed(GpuSettings(), changes).gpu.window_requests == 8
