"""Shares of an engine in simulated time: jobs of a tenth of a second, one after the other."""

from collections import deque

import pytest

from gpu_consumers.policy.selection import Credit, Lane, Shares, Window, charge, choose, guaranteed_ratio
from topics.records import Length, Tier

HIGH, LOW = Lane(Tier.HIGH, Length.SHORT), Lane(Tier.LOW, Length.SHORT)
JOB_S = 0.1
SHARES = Shares()


def serve(rates_per_s, until_s):
    """Jobs as (lane, arrival, start).  `rates_per_s` gives each lane's rate and the end of its arrivals."""
    waiting = {
        lane: deque(n / rate_per_s for n in range(int(last_s * rate_per_s)))
        for lane, (rate_per_s, last_s) in rates_per_s.items()
    }
    credit, now_s, served = Credit(), 0.0, []
    while now_s < until_s:
        lanes = [lane for lane, arrivals in waiting.items() if arrivals and arrivals[0] <= now_s]
        lane = choose(credit, lanes, Window())
        if lane is None:
            now_s = min((arrivals[0] for arrivals in waiting.values() if arrivals), default=until_s)
            continue
        credit = charge(SHARES, credit, lanes, lane, JOB_S * 1000)
        served.append((lane, waiting[lane].popleft(), now_s))
        now_s += JOB_S
    return served


@pytest.mark.behaviour(15)
def test_a_flood_of_high_at_twice_the_capacity_leaves_low_its_share():
    served = serve({HIGH: (20, 600), LOW: (20, 600)}, until_s=600)
    low_ratio = sum(lane == LOW for lane, _, _ in served) / len(served)
    assert low_ratio == pytest.approx(SHARES.low / (SHARES.low + SHARES.high), rel=0.02)


@pytest.mark.behaviour(15)
def test_low_that_asks_for_no_more_than_its_guarantee_never_waits_longer_than_a_turn_of_all():
    per_s = guaranteed_ratio(SHARES, LOW) / JOB_S
    served = serve({HIGH: (20, 600), LOW: (per_s, 600)}, until_s=600)
    waits_s = [start_s - arrival_s for lane, arrival_s, start_s in served if lane == LOW]
    assert len(waits_s) >= 600 * per_s - 2
    assert max(waits_s) <= JOB_S * (SHARES.high + SHARES.medium + SHARES.low) / SHARES.low


@pytest.mark.behaviour(16)
def test_low_has_everything_within_a_second_of_the_end_of_high():
    served = serve({HIGH: (10, 60), LOW: (20, 600)}, until_s=300)
    last_high_s = max(start_s for lane, _, start_s in served if lane == HIGH)
    after = [start_s for lane, _, start_s in served if start_s > last_high_s]
    assert after[0] - last_high_s <= 1.0
    assert len(after) == pytest.approx((300 - last_high_s) / JOB_S, abs=2)
