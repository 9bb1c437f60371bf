import pytest

from streams import limits
from streams.limits import LiveLimits
from streams.settings import Bucket, Streams
from topics.records import Control, ControlAction, ControlKind, Priority

LEVELS = {("global", "all"): 1.0, ("pool", "default"): 2.0, ("tenant", "other"): 3.0, ("tenant", "acme"): 4.0,
          ("class", "high"): 5.0, ("class", "low"): 6.0}  # fmt: skip


def bucket(refill_units_per_s, **fields):
    return Bucket(refill_units_per_s=refill_units_per_s, **fields)


SECTION = Streams(
    global_budget=bucket(1.0),
    pool_budget=bucket(2.0),
    tenant_budget=bucket(3.0, paced=True),
    tenant_budgets={"acme": bucket(4.0)},
    class_budgets={Priority.HIGH: bucket(5.0), Priority.MEDIUM: bucket(5.5), Priority.LOW: bucket(6.0)},
)


def order(kind, name, **fields):
    return Control(id="o", action=ControlAction.LIMITS, kind=kind, name=name, at_s=0.0, by="me", **fields)


def test_each_level_has_its_budget():
    found = {place: limits.configured(SECTION, *place).refill_units_per_s for place in LEVELS}
    assert found == LEVELS


def test_a_level_that_does_not_exist_is_a_bug():
    with pytest.raises(ValueError, match="no level 'planet'"):
        limits.configured(SECTION, "planet", "earth")


def test_an_order_changes_what_it_names_and_leaves_the_rest_as_in_the_settings():
    changed = limits.ordered(SECTION, order(ControlKind.TENANT, "other", burst_s=2.0))
    assert changed == bucket(3.0, burst_s=2.0, paced=True)


def test_an_order_without_figures_takes_the_budget_back():
    assert limits.ordered(SECTION, order(ControlKind.GLOBAL, "all")) is None


def test_a_change_holds_for_its_budget_alone_until_it_is_taken_back():
    live = LiveLimits(SECTION)
    live.set("tenant", "acme", bucket(9.0))
    found = {place: live.of(*place).refill_units_per_s for place in LEVELS}
    assert found == {**LEVELS, ("tenant", "acme"): 9.0}
    for _ in range(2):
        live.set("tenant", "acme", None)
        assert live.of("tenant", "acme") == bucket(4.0)


@pytest.mark.parametrize(
    ("budgets", "expected_s"),
    [
        ({}, 61.0),
        ({"tenant_budget": bucket(1, burst_s=1000, warm_up_s=10)}, 1010.0),
        ({"tenant_budgets": {"a": bucket(1, burst_s=2000, warm_up_s=0)}}, 2000.0),
        ({"class_budgets": dict.fromkeys(Priority, bucket(1, burst_s=3000))}, 3001.0),
    ],
)
def test_the_slowest_bucket_of_all_says_how_far_back_must_be_read(budgets, expected_s):
    live = LiveLimits(Streams(**budgets))
    assert live.slowest_fill_s() == expected_s
    live.set("pool", "default", bucket(1, burst_s=5000, warm_up_s=0))
    assert live.slowest_fill_s() == 5000.0
