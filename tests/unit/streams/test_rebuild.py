"""What a rebuild makes of the balances in the log."""

import pytest

from streams import rebuild
from streams.settings import Bucket, Streams
from topics.notes import Balances
from topics.records import Priority


def balances(at_s, **levels):
    return Balances(at_s=at_s, by="w", levels={name.replace("_", ":"): units for name, units in levels.items()})


def kept(*records):
    levels = {}
    for record in records:
        rebuild.keep_newest(levels, record)
    return levels


def test_each_bucket_keeps_its_newest_level():
    assert kept(balances(1.0, tenant_a=10.0, pool_p=5.0), balances(2.0, tenant_a=7.0)) == {
        "tenant:a": (7.0, 2.0),
        "pool:p": (5.0, 1.0),
    }


def test_an_older_record_behind_a_newer_one_changes_nothing():
    assert kept(balances(2.0, tenant_a=7.0), balances(1.0, tenant_a=10.0)) == {"tenant:a": (7.0, 2.0)}


def test_of_two_at_the_same_time_the_later_in_the_log_counts():
    assert kept(balances(2.0, tenant_a=7.0), balances(2.0, tenant_a=3.0)) == {"tenant:a": (3.0, 2.0)}


def test_debt_is_kept():
    assert kept(balances(1.0, tenant_a=-50.0)) == {"tenant:a": (-50.0, 1.0)}


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        ({}, 61.0),
        ({"tenant_budget": Bucket(refill_units_per_s=1, burst_s=1000, warm_up_s=10)}, 1010.0),
        ({"tenant_budgets": {"a": Bucket(refill_units_per_s=1, burst_s=2000, warm_up_s=0)}}, 2000.0),
        ({"class_budgets": dict.fromkeys(Priority, Bucket(refill_units_per_s=1, burst_s=3000))}, 3001.0),
    ],
)
def test_the_slowest_bucket_of_all_says_how_far_back_must_be_read(budgets, expected):
    assert rebuild.slowest_fill_s(Streams(**budgets)) == expected
