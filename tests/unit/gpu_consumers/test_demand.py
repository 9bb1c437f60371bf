import random
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.iteration_model import PRESETS, IterationModel, Mark, Sequence
from gpu_consumers.policy import demand, selection
from gpu_consumers.policy.demand import HALF_LIFE_S, Demand, Rules, follow, longs_cap_ratio
from gpu_consumers.policy.selection import Credit, Lane, Shares
from rampmeter.results import quantile
from topics.records import Length, Tier

SHORT, LONG = (Lane(Tier.MEDIUM, length) for length in Length)
RULES = Rules(most_ratio=0.75, least_ratio=0.25)
NOBODY = Demand(0.0)


def cap(shorts, *, is_short_waiting=False):
    return longs_cap_ratio(shorts, 64, is_short_waiting=is_short_waiting, rules=RULES)


def test_without_shorts_longs_may_have_the_whole_engine():
    assert cap(NOBODY) == 1.0
    assert cap(follow(NOBODY, 0.0, 1000.0)) == 1.0


def test_what_is_asked_for_counts_by_half_after_a_half_life_and_not_before_it_was_there():
    shorts = follow(NOBODY, 0.5, 100.0)
    assert shorts.ratio == 0.0
    shorts = follow(shorts, 0.0, 100.0 + HALF_LIFE_S)
    assert shorts.ratio == pytest.approx(0.25)
    assert follow(shorts, 0.0, 100.0 + 2 * HALF_LIFE_S).ratio == pytest.approx(0.125)


def test_what_shorts_need_stays_free_with_a_margin_of_its_root_in_sequences():
    assert cap(Demand(0.0, ratio=16 / 64)) == pytest.approx(1 - (16 + 4) / 64)


def test_longs_keep_the_least_under_any_pressure_and_have_at_most_the_most_while_a_short_waits():
    assert cap(Demand(0.0, ratio=1.0)) == 0.25
    assert cap(NOBODY, is_short_waiting=True) == 0.75


@given(looks=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 50)), max_size=50), sequences=st.integers(1, 256))
def test_the_cap_is_always_within_its_bounds_so_that_an_empty_engine_takes_any_job(looks, sequences):
    shorts, now_s = NOBODY, 0.0
    for after_s, ratio in looks:
        now_s += after_s
        shorts = follow(shorts, ratio, now_s)
        for is_short_waiting in (False, True):
            found = longs_cap_ratio(shorts, sequences, is_short_waiting=is_short_waiting, rules=RULES)
            assert 0.25 <= found <= (0.75 if is_short_waiting else 1.0)


def adaptive(shorts, size, *, is_short_waiting):
    return longs_cap_ratio(shorts, size, is_short_waiting=is_short_waiting, rules=RULES)


def fixed(_shorts, _size, *, is_short_waiting):
    """Three quarters while a short waits, else all."""
    return RULES.most_ratio if is_short_waiting else 1.0


class Plant:
    """The simulated engine's model with longs always waiting and shorts that come by chance."""

    SIZE = 32

    def __init__(self, cap_of, shorts_per_s, until_s):
        self.model, self.cap_of = IterationModel(PRESETS["a100-8b"], self.SIZE, 2048), cap_of
        self.random, self.until_s = random.Random(4), until_s
        self.arrivals = deque(self._arrivals(shorts_per_s))
        self.shorts, self.inside, self.credit = deque(), {}, Credit()
        self.demand, self.waits_s, self.long_tokens, self.caps = NOBODY, [], 0, []
        self.last_idle_s = 0.0

    def _arrivals(self, per_s):
        at_s = 0.0
        while per_s and (at_s := at_s + self.random.expovariate(per_s)) < self.until_s:
            yield at_s

    def count(self, lane):
        return sum(other == lane for other in self.inside.values())

    def fill(self, now_s):
        while len(self.inside) < self.SIZE:
            shorts = self.count(SHORT) + len(self.shorts)
            self.demand = demand.follow(self.demand, shorts / self.SIZE, now_s)
            cap_ratio = self.cap_of(self.demand, self.SIZE, is_short_waiting=bool(self.shorts))
            waiting = [SHORT, LONG] if self.shorts else [LONG]
            window = selection.Window(self.count(LONG) / self.SIZE, cap_ratio)
            lane = selection.choose(self.credit, waiting, window)
            if lane is None:
                return
            self.credit = selection.charge(Shares(), self.credit, waiting, lane, 20.0 if lane == SHORT else 200.0)
            if lane == SHORT:
                self.note(now_s - self.shorts.popleft(), now_s)
            sequence = Sequence("r", 100, 40 if lane == SHORT else self.random.randrange(200, 1200))
            self.inside[sequence] = lane
            self.model.add(sequence, 0, now_s)

    def note(self, wait_s, now_s):
        if now_s > 30:
            self.waits_s.append(wait_s)

    def run(self):
        now_s = 0.0
        self.fill(now_s)
        while now_s < self.until_s:
            next_s = min(self.model.next_event_s() or self.until_s, self.arrivals[0] if self.arrivals else self.until_s)
            now_s = next_s
            while self.arrivals and self.arrivals[0] <= now_s:
                self.shorts.append(self.arrivals.popleft())
            for event in self.model.advance(now_s):
                if event.mark is Mark.FINISHED and self.inside.pop(event.sequence) == LONG:
                    self.long_tokens += event.sequence.output_tokens
            self.fill(now_s)
            self.caps.append((now_s, self.cap_of(self.demand, self.SIZE, is_short_waiting=False)))
            if len(self.inside) < self.SIZE:
                self.last_idle_s = now_s
        return self


@pytest.mark.parametrize(("shorts_per_s", "kept_ratio"), [(2.0, 0.96), (8.0, 0.9)])
def test_shorts_that_keep_coming_find_room_which_a_fixed_cap_does_not_give_them(shorts_per_s, kept_ratio):
    with_cap, without = (Plant(cap_of, shorts_per_s, 200.0).run() for cap_of in (adaptive, fixed))
    assert sum(with_cap.waits_s) < 0.5 * sum(without.waits_s)
    assert quantile(with_cap.waits_s, 0.99) < 0.7 * quantile(without.waits_s, 0.99)
    assert with_cap.long_tokens > kept_ratio * without.long_tokens


def test_longs_lose_nothing_while_no_shorts_come():
    with_cap, without = (Plant(cap_of, 0.0, 100.0).run() for cap_of in (adaptive, fixed))
    assert with_cap.long_tokens == without.long_tokens


def test_the_cap_moves_slowly_and_longs_have_the_whole_engine_again_soon_after_the_last_short():
    plant = Plant(adaptive, 8.0, 100.0)
    plant.until_s = 200.0
    plant.run()
    steady = [ratio for at_s, ratio in plant.caps if 30 < at_s < 100]
    assert max(abs(after - before) for before, after in pairwise(steady)) < 0.05
    assert max(steady) - min(steady) < 0.3
    assert plant.last_idle_s < 100.0 + 8 * HALF_LIFE_S
