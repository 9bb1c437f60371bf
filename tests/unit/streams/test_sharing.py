"""Who waits before a lane, and how long the lane is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.policy.sharing import Capacity, Share, before_lane_s, must_wait, on_lane_s

CAPACITY = Capacity(units_per_s=100.0, units=50.0)
WINDOW_UNITS = CAPACITY.window_units(10.0)


def test_the_window_is_what_engines_hold_and_some_seconds_of_lanes():
    assert WINDOW_UNITS == 1050.0
    assert Capacity(units_per_s=100.0).window_units(10.0) is None
    assert Capacity(units=50.0).window_units(10.0) is None


@pytest.mark.parametrize(
    ("share", "units", "is_back", "waits"),
    [
        # idle capacity is never withheld, whoever asks
        ({"pool_open_units": 900, "mine_open_units": 900, "tenant_ratio": 0.1}, 100, False, False),
        ({"pool_open_units": 900, "mine_open_units": 900, "mine_waiting_units": 5}, 100, False, False),
        # saturated: up to the share of the lane and the tenant
        ({"pool_open_units": 1050, "mine_open_units": 400, "tenant_ratio": 0.5}, 125, False, False),
        ({"pool_open_units": 1050, "mine_open_units": 401, "tenant_ratio": 0.5}, 125, False, True),
        ({"pool_open_units": 1050, "mine_open_units": 200, "tenant_ratio": 0.5, "lane_ratio": 0.5}, 70, False, True),
        # behind what its tenant has waiting, unless it is one of those
        ({"pool_open_units": 1050, "mine_open_units": 1, "mine_waiting_units": 1}, 1, False, True),
        ({"pool_open_units": 1050, "mine_open_units": 1, "mine_waiting_units": 1}, 1, True, False),
        # a tenant with nothing on the lane always gets one in, however large
        ({"pool_open_units": 9000, "mine_open_units": 0, "tenant_ratio": 0.01}, 5000, False, False),
    ],
)
def test_a_tenant_waits_only_in_a_saturated_pool_and_beyond_its_share(share, units, is_back, waits):
    assert must_wait(units, Share(**share), WINDOW_UNITS, is_back=is_back) is waits


def test_an_unknown_capacity_withholds_nothing():
    crowded = Share(pool_open_units=1e9, mine_open_units=1e9, mine_waiting_units=1e9)
    assert not must_wait(1e9, crowded, None, is_back=False)
    assert before_lane_s(1e9, crowded, Capacity(), 10.0, is_back=False) == 0.0
    assert on_lane_s(crowded, Capacity()) is None


def test_the_wait_before_a_lane_is_the_surplus_at_the_tenants_own_rate():
    share = Share(
        pool_open_units=2000, mine_open_units=300, mine_waiting_units=100, lane_ratio=0.5, tenant_ratio=0.5
    )  # fair: 262.5 of 1050, at 25 units/s
    assert before_lane_s(12.5, share, CAPACITY, 10.0, is_back=False) == pytest.approx(150.0 / 25)
    assert before_lane_s(12.5, share, CAPACITY, 10.0, is_back=True) == pytest.approx(50.0 / 25)


@pytest.mark.parametrize(
    ("share", "wait_s"),
    [
        ({"pool_open_units": 50, "lane_open_units": 50}, 0.0),  # all inside the engines
        ({"pool_open_units": 150, "lane_open_units": 150}, 1.0),
        ({"pool_open_units": 150, "lane_open_units": 75, "lane_ratio": 0.5}, 1.0),
        ({"pool_open_units": 150, "lane_open_units": 75, "lane_ratio": 0.25}, 2.0),
        ({"pool_open_units": 0}, 0.0),
    ],
)
def test_the_wait_on_a_lane_is_its_work_outside_the_engines_at_its_rate(share, wait_s):
    assert on_lane_s(Share(**share), CAPACITY) == pytest.approx(wait_s)


AMOUNTS = st.floats(0, 1e6)
RATIOS = st.floats(0.001, 1)


@given(units=AMOUNTS, open_=AMOUNTS, mine=AMOUNTS, waiting=AMOUNTS, lane=RATIOS, tenant=RATIOS)
def test_who_waited_is_never_worse_off_than_who_comes_new(units, open_, mine, waiting, lane, tenant):
    share = Share(
        pool_open_units=open_, mine_open_units=mine, mine_waiting_units=waiting, lane_ratio=lane, tenant_ratio=tenant
    )
    back = must_wait(units, share, WINDOW_UNITS, is_back=True)
    assert not back or must_wait(units, share, WINDOW_UNITS, is_back=False)
    assert before_lane_s(units, share, CAPACITY, 10.0, is_back=True) <= before_lane_s(
        units, share, CAPACITY, 10.0, is_back=False
    )
