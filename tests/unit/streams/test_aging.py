import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import pytest

from gpu_consumers.policy import selection
from streams.policy import aging
from streams.policy.aging import Lane, Late, Sample, Terms, Verdict
from topics.records import Length, Priority, Tier
from topics.settings import Pool

POOL = Pool()
RATIO = POOL.aged_ratio
HIGH, LOW, AGED = (Lane(tier, Length.SHORT) for tier in (Tier.HIGH, Tier.LOW, Tier.AGED))
DUE = Late(
    age_s=30.0, threshold_s=30.0, lane_wait_s=9.0, aged_wait_s=2.0, room_records=1, room_units=1.0
)  # fmt: skip

LOOKS = [
    ({}, Verdict.PROMOTE),
    ({"age_s": 29.9}, Verdict.YOUNG),
    ({"room_records": 0}, Verdict.RECORD_CAP),
    ({"room_units": 0.0}, Verdict.COST_CAP),
    ({"room_units": None}, Verdict.PROMOTE),
    ({"aged_wait_s": 9.0}, Verdict.NOT_SOONER),
    ({"aged_wait_s": 99.0, "lane_wait_s": None}, Verdict.PROMOTE),
    ({"aged_wait_s": None}, Verdict.PROMOTE),
    ({"lane_wait_s": None, "age_s": 1.0}, Verdict.YOUNG),
]


@pytest.mark.parametrize(("change", "verdict"), LOOKS, ids=[str(change) for change, _ in LOOKS])
def test_late_work_is_promoted_under_the_caps_when_a_copy_is_served_sooner(change, verdict):
    assert aging.decide(replace(DUE, **change)) is verdict


@pytest.mark.parametrize("lane", selection.LANES, ids=lambda lane: f"{lane.tier}.{lane.length}")
def test_with_every_lane_waiting_the_ratio_is_what_the_consumers_guarantee(lane):
    shares = selection.Shares()
    everything = [Lane(*other) for other in selection.LANES]
    assert aging.ratio(POOL, Lane(*lane), everything) == pytest.approx(selection.guaranteed_ratio(shares, lane))


@pytest.mark.parametrize(
    ("lane", "waiting", "ratio"),
    [
        (LOW, [], 1.0),
        (LOW, [AGED], 0.9),
        (AGED, [LOW], 0.1),
        (AGED, [], 1.0),
        (LOW, [LOW, HIGH], 1 / 9),
        (LOW, [LOW, HIGH, AGED], 0.9 / 9),
        (Lane(Tier.LOW, Length.LONG), [LOW], 1 / 20),
    ],
)
def test_the_ratio_is_among_those_that_wait(lane, waiting, ratio):
    assert aging.ratio(POOL, lane, waiting) == pytest.approx(ratio)


def test_a_wait_is_unknown_while_the_rate_or_the_cost_ahead_is():
    assert aging.wait_s(900.0, 100.0, 0.5, 1000.0) == 2.0
    assert aging.wait_s(None, 100.0, 0.5, 1000.0) is None
    assert aging.wait_s(900.0, 100.0, 0.5, None) is None
    assert aging.wait_s(900.0, 100.0, 0.5, 0.0) is None


@pytest.mark.parametrize("aged_units", [0.0, 300.0, 2500.0])
@pytest.mark.parametrize("lane", [HIGH, LOW])
def test_records_that_need_no_look_are_those_that_the_lane_serves_sooner(lane, aged_units):
    waiting = [HIGH, LOW, AGED]
    lane_ratio, aged_ratio = (aging.ratio(POOL, which, waiting) for which in (lane, AGED))
    skipped = aging.not_worth_records(aged_units, 100.0, lane_ratio, aged_ratio)

    def is_worth(position):
        waits = (aging.wait_s(ahead, 100.0, ratio, 1000.0) for ahead, ratio in ((position * 100.0, lane_ratio),
                                                                               (aged_units, aged_ratio)))  # fmt: skip
        return aging.worth_it(*waits)

    assert [is_worth(position) for position in range(skipped)] == [False] * skipped
    assert is_worth(skipped + 1)


def sample(at_s, dispatched, promoted=0.0):
    return Sample(at_s, dispatched, {Priority.LOW: promoted})


def test_what_may_be_promoted_is_the_ratio_of_what_was_dispatched_less_what_was_promoted():
    seen = [sample(0, 5000.0), sample(1, 6000.0, 30.0), sample(2, 7000.0)]
    assert aging.room_units(seen, 0.1, has_idle=False) == pytest.approx(170.0)
    assert aging.room_units(seen[:1], 0.1, has_idle=False) == 0.0


def test_the_cost_cap_does_not_bind_while_the_fleet_is_unknown_or_has_idle_room():
    seen = [sample(0, 0.0, 999.0), sample(1, 10.0)]
    assert aging.room_units(seen, 0.1, has_idle=True) is None
    assert aging.room_units([*seen, sample(2, None)], 0.1, has_idle=False) is None
    assert aging.room_units([sample(0, None)], 0.1, has_idle=False) is None
    assert aging.room_units(seen, 0.1, has_idle=False) == pytest.approx(-998.0)


def test_samples_leave_with_the_window():
    seen = [sample(at_s, 0.0) for at_s in (1.0, 2.0, 3.0)]
    assert aging.within(seen, 4.0, 2.0) == (seen[2],)


def test_the_class_that_was_promoted_least_is_next_and_equals_begin_with_the_lowest():
    assert aging.next_class(list(Priority), {}) is Priority.LOW
    assert aging.next_class([Priority.HIGH, Priority.LOW], {Priority.LOW: 5.0}) is Priority.HIGH
    assert aging.next_class([Priority.HIGH], {Priority.HIGH: 5.0}) is Priority.HIGH


@dataclass(eq=False)
class Job:
    lane: Lane
    units: float
    joined_s: float
    ahead_units: float = 0.0
    due_units: float | None = None
    aged_units: float | None = None
    started_s: float | None = None

    @property
    def wait_s(self):
        return self.started_s - self.joined_s


@dataclass
class World:
    """One engine that cuts no job, lanes in front of it, and the promoter's policy, in virtual time."""

    rate: float = 1000.0
    dearest: float = 500.0
    threshold_s: float = 30.0
    step_s: float = 0.5
    window_s: float = 60.0
    room_records: int = 256
    stuck: tuple = ()
    max_wait_s: float = float("inf")
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self):
        self.lanes = {Lane(*lane): deque() for lane in selection.LANES}
        self.now_s = self.dispatched = self.next_step_s = 0.0
        self.credit, self.samples, self.served, self.copied = selection.Credit(), (), [], set()
        self.by_lane, self.backlogged = Counter(), Counter()

    def units(self):
        return min(self.dearest, self.rng.expovariate(1 / 100))

    def terms(self, lane):
        guaranteed = [selection.guaranteed_ratio(selection.Shares(), selection.Lane(*which))
                      for which in (lane, Lane(Tier.AGED, lane.length))]  # fmt: skip
        return Terms(self.rate, *guaranteed, RATIO, self.dearest, self.threshold_s, self.step_s, self.window_s)

    def run(self, seconds, loads):
        """`loads`: cost that arrives on each lane, relative to the engine's rate."""
        due = [(self.rng.expovariate(load * self.rate / 100), lane) for lane, load in loads.items()]
        while self.now_s < seconds:
            at_s, lane = min(due)
            if at_s <= self.now_s or not self._serve():
                self.now_s = max(self.now_s, min(at_s, self.next_step_s))
            if at_s <= self.now_s:
                self._join(lane, at_s)
                due = [(s + self.rng.expovariate(loads[w] * self.rate / 100), w) if w is lane else (s, w)
                       for s, w in due]  # fmt: skip
            if self.now_s >= self.next_step_s:
                self._promote()
                self.next_step_s += self.step_s
        return self

    def _join(self, lane, at_s):
        queue = self.lanes[lane]
        ahead = sum(job.units for job in queue if job.started_s is None)
        if ahead / (self.terms(lane).lane_ratio * self.rate) <= self.max_wait_s:
            queue.append(Job(lane, self.units(), at_s, ahead))

    def _serve(self):
        for lane, queue in self.lanes.items():
            while queue and queue[0].started_s is not None and lane not in self.stuck:
                queue.popleft()  # claimed: it ran as a copy, or its copy lies here
        waiting = [selection.Lane(*lane) for lane, queue in self.lanes.items() if queue and lane not in self.stuck]
        lane = selection.choose(self.credit, waiting, selection.Window())
        if lane is None:
            return False
        job = self.lanes[Lane(*lane)].popleft()
        self.credit = selection.charge(selection.Shares(), self.credit, waiting, lane, job.units)
        job.started_s = self.now_s
        self.now_s += job.units / self.rate
        self.dispatched += job.units
        self.served.append(job)
        self.by_lane[Lane(*lane)] += job.units
        self.backlogged.update({Lane(*other): job.units for other in waiting})
        return True

    def _promote(self):
        self.samples = aging.within((*self.samples, Sample(self.now_s, self.dispatched, {})), self.now_s, self.window_s)
        promoted, units = aging.promoted_units(self.samples), Counter()
        for lane in self.stuck:
            self._note_due(lane)
        lines = {p: self._late(Lane(Tier(p), Length.SHORT)) for p in Priority}
        heads = {p: head for p, line in lines.items() if (head := next(line, None))}
        while heads:
            p = aging.next_class(heads, promoted)
            job, ahead = heads.pop(p)
            aged = sum(copy.units for copy in self.lanes[AGED])
            verdict = aging.decide(self._facts(job, ahead, aged))
            if verdict is Verdict.PROMOTE:
                self.copied.add(job)
                job.aged_units = aged
                self.lanes[AGED].append(job)
                promoted[p] += job.units
                units[p] += job.units
                self.samples = (*self.samples[:-1], replace(self.samples[-1], promoted_units=dict(units)))
            elif verdict is not Verdict.NOT_SOONER:
                break
            if following := next(lines[p], None):
                heads[p] = following
        if units:
            self._check_cap()

    def _late(self, lane):
        ahead = 0.0
        for job in self.lanes[lane]:
            if job.started_s is None and job not in self.copied:
                if self.now_s - job.joined_s < self.threshold_s:
                    return
                yield job, ahead
            ahead += job.units if job.started_s is None else 0.0

    def _note_due(self, lane):
        due_units = 0.0
        for job, _ in self._late(lane):
            due_units += job.units
            job.due_units = job.due_units or due_units

    def _facts(self, job, ahead, aged):
        waiting = {lane for lane, queue in self.lanes.items() if queue} | {AGED}
        lane_s = aging.wait_s(ahead, job.units, aging.ratio(POOL, job.lane, waiting), self.rate)
        return Late(
            age_s=self.now_s - job.joined_s,
            threshold_s=self.threshold_s,
            lane_wait_s=None if job.lane in self.stuck else lane_s,
            aged_wait_s=aging.wait_s(aged, job.units, aging.ratio(POOL, AGED, waiting), self.rate),
            room_records=self.room_records - len(self.lanes[AGED]),
            room_units=aging.room_units(self.samples, RATIO, has_idle=False),
        )

    def _check_cap(self):
        dispatched = self.dispatched - self.samples[0].dispatched_units
        assert sum(aging.promoted_units(self.samples).values()) <= RATIO * dispatched + self.dearest

    def of(self, lane):
        return [job for job in self.served if job.lane == lane]


FLOOD = 2.0


@pytest.fixture(scope="module")
def flooded():
    """High at twice capacity for ten minutes; low at four times its guaranteed part, refused beyond 120 s of wait."""
    return World(max_wait_s=120.0).run(600.0, {HIGH: FLOOD, LOW: 0.28})


def test_under_a_flood_of_high_every_low_request_is_served_within_the_bound(flooded):
    terms = flooded.terms(LOW)
    served = flooded.of(LOW)
    assert len(served) > 500
    assert [job for job in served if job.wait_s > aging.lane_bound_s(terms, job.ahead_units, job.units)] == []
    oldest_s = max(flooded.now_s - job.joined_s for job in flooded.lanes[LOW])
    last_s = aging.lane_bound_s(terms, 0.0, 0.0)
    assert max(oldest_s, *(job.wait_s for job in served)) <= 120.0 + last_s


def test_with_every_lane_full_every_class_is_served_within_its_bound():
    loads = {Lane(tier, length): 0.6 if length is Length.SHORT else 0.1 for tier in Priority for length in Length}
    world = World().run(120.0, {Lane(Tier(tier), length): load for (tier, length), load in loads.items()})
    for lane in world.lanes:
        bounds = [
            (job.wait_s, aging.lane_bound_s(world.terms(lane), job.ahead_units, job.units)) for job in world.of(lane)
        ]
        assert [(wait_s, bound_s) for wait_s, bound_s in bounds if wait_s > bound_s] == []
    low = world.of(LOW)
    assert max(job.wait_s / aging.lane_bound_s(world.terms(LOW), job.ahead_units, job.units) for job in low) > 0.5


def test_under_a_flood_of_high_low_gets_at_least_its_guaranteed_share(flooded):
    guaranteed = selection.guaranteed_ratio(selection.Shares(), selection.Lane(*LOW))
    assert flooded.by_lane[LOW] >= guaranteed * flooded.backlogged[LOW]
    assert sum(job.units for job in flooded.of(LOW)) > flooded.by_lane[LOW]  # and what was promoted comes on top


def test_a_flood_of_late_high_work_leaves_low_its_part_of_the_promotions(flooded):
    by_class = Counter()
    for job in flooded.copied:
        by_class[job.lane.tier] += job.units
    assert by_class[Tier.HIGH] > 0
    assert by_class[Tier.LOW] >= sum(by_class.values()) / 3


def test_promoted_work_keeps_to_its_share_under_a_flood(flooded):
    assert flooded.by_lane[AGED] <= RATIO * flooded.dispatched + flooded.dearest


def test_promotion_gives_low_more_than_its_lane_alone(flooded):
    without = World(max_wait_s=120.0, room_records=0).run(600.0, {HIGH: FLOOD, LOW: 0.28})
    served = [sum(job.units for job in world.of(LOW)) / world.dispatched for world in (flooded, without)]
    assert served[0] > 1.1 * served[1]


def test_low_work_before_an_owner_that_does_nothing_is_served_within_the_bound_by_promotion():
    world = World(stuck=(LOW,)).run(300.0, {HIGH: FLOOD, LOW: 0.025})
    served, terms = world.of(LOW), world.terms(LOW)
    assert len(served) > 50
    assert [j for j in served if j.wait_s > aging.aged_bound_s(terms, j.due_units, j.aged_units)] == []
    longest_s = max(aging.aged_bound_s(terms, j.due_units, j.aged_units) for j in served)
    assert all(world.now_s - job.joined_s <= longest_s for job in world.lanes[LOW] if job.started_s is None)


def test_without_promotion_that_work_would_never_be_served():
    assert World(stuck=(LOW,), room_records=0).run(100.0, {HIGH: FLOOD, LOW: 0.025}).of(LOW) == []
