"""What a rebuild makes of the balances in the log."""

import pytest

from streams import rebuild
from topics.notes import Balances


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


def test_after_the_servers_clock_was_put_back_the_later_in_the_log_counts():
    assert kept(balances(5000.0, tenant_a=100.0), balances(1400.0, tenant_a=-50.0)) == {"tenant:a": (-50.0, 1400.0)}
    before, after, late = balances(5000.0, tenant_a=9.0), balances(1400.0, tenant_a=5.0), balances(1399.0, tenant_a=7.0)
    assert kept(before, after, late) == {"tenant:a": (5.0, 1400.0)}


@pytest.mark.parametrize("name", ["junk", "", ":", "class:urgent", "class:", "tenant:", "Tenant:a", "shard:a", "class"])
def test_what_is_no_bucket_is_passed_over_and_the_rest_of_its_record_is_not(name):
    garbage = Balances(at_s=2.0, by="x", levels={name: 1.0, "class:high": 3.0, "global:all": 4.0})
    assert kept(garbage) == {"class:high": (3.0, 2.0), "global:all": (4.0, 2.0)}


@pytest.mark.parametrize("units", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_of_units_is_passed_over(units):
    assert kept(balances(1.0, tenant_a=10.0), balances(2.0, tenant_a=units)) == {"tenant:a": (10.0, 1.0)}


def test_debt_is_kept():
    assert kept(balances(1.0, tenant_a=-50.0)) == {"tenant:a": (-50.0, 1.0)}
