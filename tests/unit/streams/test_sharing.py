"""Who waits before a lane, and how long the lane is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streams.policy.sharing import Capacity, Share, before_lane_s, in_all_s, must_wait, on_lane_s

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
    assert in_all_s(1e9, crowded, Capacity(), is_back=False) == 0.0


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
        # 50 of its own; the other lane gets its share meanwhile, until it has no more
        ({"pool_open_units": 150, "lane_open_units": 75, "lane_ratio": 0.5, "others": ((75, 1),)}, 1.0),
        ({"pool_open_units": 150, "lane_open_units": 75, "lane_ratio": 0.5, "others": ((200, 1),)}, 1.0),
        ({"pool_open_units": 150, "lane_open_units": 75, "lane_ratio": 0.25, "others": ((75, 3),)}, 1.25),
        ({"pool_open_units": 150, "lane_open_units": 75, "lane_ratio": 0.25, "others": ((400, 3),)}, 2.0),
        ({"pool_open_units": 150, "lane_open_units": 75, "others": ((10, 3), (400, 1))}, 1.1),
        ({"pool_open_units": 0}, 0.0),
    ],
)
def test_the_wait_on_a_lane_is_its_work_outside_the_engines_and_what_others_get_meanwhile(share, wait_s):
    assert on_lane_s(Share(**share), CAPACITY) == pytest.approx(wait_s)


def test_few_shorts_do_not_make_a_lane_of_longs_look_endless():
    longs = {"pool_open_units": 2000, "lane_open_units": 1900, "mine_open_units": 1900, "lane_ratio": 0.05}
    few = Share(others=((100, 19),), **longs)
    assert on_lane_s(few, CAPACITY) == pytest.approx((1900 * 0.975 + 100) / 100)
    assert in_all_s(100, few, CAPACITY, is_back=True) == pytest.approx((1900 * 0.975 + 100 + 100) / 100)


def test_the_wait_in_all_counts_the_tenants_of_the_lane_and_then_the_other_lanes():
    share = Share(
        pool_open_units=2000, lane_open_units=1000, mine_open_units=400, mine_waiting_units=100, tenant_ratio=0.5,
        lane_waiting_units=150, lane_ratio=0.8, others=((1000, 0.25),),
    )  # fmt: skip
    # Its tenant has 390 on the lane outside the engines; beside it are 650, of which it lets as much pass as it has.
    assert in_all_s(10, share, CAPACITY, is_back=True) == pytest.approx(400 * 2 / 0.8 / 100)
    assert in_all_s(10, share, CAPACITY, is_back=False) == pytest.approx(500 * 2 / 0.8 / 100)
    assert in_all_s(310, share, CAPACITY, is_back=False) == pytest.approx((800 + 650) / 0.8 / 100)


AMOUNTS = st.just(0.0) | st.floats(1e-9, 1e6)
"""Of less than that a quotient may be nothing, where no number is left that is as small."""
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
    waits_s = [in_all_s(units, share, CAPACITY, is_back=is_back) for is_back in (True, False)]
    assert waits_s == sorted(waits_s)


@given(lane=AMOUNTS, others=st.lists(st.tuples(AMOUNTS, st.floats(0.01, 100)), max_size=5))
def test_a_wait_is_between_that_of_the_lane_alone_and_that_at_its_guaranteed_share(lane, others):
    pool_units, weights = lane + sum(units for units, _ in others), 1 + sum(weight for _, weight in others)
    share = Share(pool_open_units=pool_units, lane_open_units=lane, others=tuple(others))
    alone_s, wait_s = (on_lane_s(each, CAPACITY) for each in (replace(share, others=()), share))
    assert alone_s <= wait_s <= alone_s * weights * (1 + 1e-9)
    assert wait_s <= pool_units / CAPACITY.units_per_s * (1 + 1e-9)
