"""What no load may take away: each tier's share, the cap of aged work, the place of high work at the next free slot."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.iteration_model import PRESETS, IterationModel, Mark, Sequence
from gpu_consumers.policy import selection
from gpu_consumers.policy.selection import LANES, TIERS, Credit, Shares, Window
from tests.unit.gpu_consumers.test_selecting import HIGH, LOW, Stage
from topics.records import Length, Tier

FREE, SHARES = Window(), Shares()
DEAREST_UNITS = 500.0
WEIGHTS = {Tier.HIGH: 8.0, Tier.MEDIUM: 4.0, Tier.LOW: 1.0}
GUARANTEES = {tier: weight / 13 * 0.9 for tier, weight in WEIGHTS.items()} | {Tier.AGED: 0.1}
LAG_JOBS = {Tier.AGED: 15}
"""How many of the dearest jobs a tier may be behind: the aged tier's weight follows who else waits, so it lags more."""


def turns(data):
    """Who waits and what the chosen job costs, turn by turn: two bytes each, since drawn sets take long."""
    for mask, cost in zip(data[::2], data[1::2], strict=False):
        yield {lane for bit, lane in enumerate(LANES) if mask >> bit & 1}, 1 + cost / 255 * (DEAREST_UNITS - 1)


loads = st.binary(min_size=100, max_size=400).map(turns)


def serve(load, always):
    """Served cost by tier after each turn, while `always` waits in every one."""
    credit, served = Credit(), Counter()
    for others, cost_units in load:
        waiting = {*others, always}
        lane = selection.choose(credit, waiting, FREE)
        credit = selection.charge(SHARES, credit, waiting, lane, cost_units)
        served[lane.tier] += cost_units
        yield served


@pytest.mark.parametrize("tier", TIERS)
@given(load=loads, length=st.sampled_from(list(Length)))
def test_a_tier_that_waits_gets_its_share_whatever_the_others_send(tier, load, length):
    lag_units = LAG_JOBS.get(tier, 4) * DEAREST_UNITS
    for served in serve(load, selection.Lane(tier, length)):
        assert served[tier] >= GUARANTEES[tier] * served.total() - lag_units


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("flood", [*((tier,) for tier in TIERS), TIERS], ids="+".join)
def test_under_a_flood_of_any_tier_or_all_each_comes_near_to_its_share_of_the_cost(tier, flood):
    draw = random.Random(7)
    load = [([lane for lane in LANES if lane.tier in flood], draw.uniform(1, DEAREST_UNITS)) for _ in range(3000)]
    *_, served = serve(load, selection.Lane(tier, Length.SHORT))
    assert served[tier] >= 0.95 * GUARANTEES[tier] * served.total()


@given(load=loads, beside=st.sampled_from([lane for lane in LANES if lane.tier is not Tier.AGED]))
def test_aged_work_never_gets_more_than_its_ratio_while_another_tier_waits(load, beside):
    aged = [lane for lane in LANES if lane.tier is Tier.AGED]
    for served in serve([({*others, *aged}, units) for others, units in load], beside):
        assert served[Tier.AGED] <= SHARES.aged_ratio * served.total() + 2 * DEAREST_UNITS


class Plant:
    """A real selector before the simulated engine's model, which low work fills; in virtual time."""

    def __init__(self, **gpu):
        self.stage, self.model = Stage(**gpu), IterationModel(PRESETS["a100-8b"], 8, 2048)
        self.random, self.inside = random.Random(2), {}
        self.freed_s, self.began_s, self.first_token_s = [], {}, {}

    def fill(self, now_s):
        for entry in self.stage.select():
            self.began_s[entry.id] = now_s
            sequence = Sequence(entry.id, 200, self.random.randrange(50, 400))
            self.model.add(sequence, selection.rank(entry.lane), now_s)
            self.inside[sequence] = entry

    def run_until(self, until_s):
        while (next_s := self.model.next_event_s()) <= until_s:
            for event in self.model.advance(next_s):
                if event.mark is Mark.FIRST_TOKEN:
                    self.first_token_s[event.sequence.id] = next_s
                else:
                    self.freed_s.append(next_s)
                    self.stage.runner.free(self.inside.pop(event.sequence))
            self.fill(next_s)
        self.model.advance(until_s)


def test_behind_a_full_lane_of_low_work_a_high_request_starts_within_one_step_of_the_next_free_slot():
    plant = Plant(window_requests=8)
    plant.stage.put(*(f"low{n}" for n in range(2000)), lane=LOW)
    plant.fill(0.0)
    came_s = {}
    for n in range(40):
        came_s[f"high{n}"] = 1.0 + n * 1.7
        plant.run_until(came_s[f"high{n}"])
        plant.stage.put(f"high{n}", lane=HIGH)
        plant.fill(came_s[f"high{n}"])
    plant.run_until(100.0)
    step_s = PRESETS["a100-8b"].base_s + 8 * 200 * PRESETS["a100-8b"].per_token_s
    for request_id, at_s in came_s.items():
        free_s = next(s for s in plant.freed_s if s >= at_s)
        assert plant.began_s[request_id] == free_s
        assert plant.first_token_s[request_id] - free_s <= 2 * step_s  # it enters one step and is read in the next
    waits_s = [after - before for before, after in pairwise(plant.freed_s)]
    assert max(waits_s) > 2 * step_s, "slots are scarce"
