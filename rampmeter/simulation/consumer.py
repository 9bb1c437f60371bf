"""A GPU consumer in virtual time: its lane partitions, its choice, its engine, its telemetry."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpu_consumers.engines.iteration_model import Mark
from gpu_consumers.policy import batching, capacity, demand, selection
from gpu_consumers.policy.batching import Ask, InFlight, Limits
from gpu_consumers.policy.selection import Lane
from rampmeter.simulation.jobs import Job
from rampmeter.simulation.lanes import Partition
from rampmeter.simulation.stations import Machine, Station
from topics.telemetry import Telemetry

LOOK_S = 2.0
"""Between two looks at what the engine has done; production looks more often, which costs the most here."""
_CAPACITY = capacity.rules(1.0)
_OPEN = selection.Window()
"""While no long waits nothing has to stand back."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all consumers of a pool are set to."""

    pool: str
    shares: selection.Shares
    longs: demand.Rules
    machine: Machine
    prefill_tokens: int
    long_prefill_tokens: int | None


class _Tally:
    """What jobs of one length take of the engine."""

    __slots__ = ("_limits", "kv_tokens", "sequences", "share")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.sequences = self.kv_tokens = 0
        self.share = 0.0
        """See `batching.share`."""

    def add(self, ask: Ask, count: int) -> None:
        """One more, or one less."""
        self.sequences += count
        self.kv_tokens += count * ask.kv_tokens
        self.share = batching.share(InFlight(self.sequences, self.kv_tokens), self._limits)


class Consumer(Station):
    """Takes from the partitions that it owns.  Invariant: `queued_units` is the cost of what waits in them."""

    def __init__(self, number: int, terms: Terms, shed: Callable[[Job, float], None]) -> None:
        """`shed` ends a job that is too late to be begun."""
        super().__init__(number, terms.machine, terms.prefill_tokens, terms.long_prefill_tokens)
        self.name = f"gpu-{number}"
        self._terms, self._shed = terms, shed
        self.partitions: dict[Lane, list[Partition]] = {}
        self._credit = selection.Credit()
        self._waiting: dict[Lane, int] = {}
        """How many of its partitions have work, by lane."""
        self._topics: dict[str, list[int]] = {}
        self.state = "ready"
        self.queued_units = self.dispatched_units = self.finished_units = 0.0
        self._latency_s: float | None = None
        self._ttft_s: float | None = None
        self._seen = capacity.Seen()
        self._looked_s = self._done_units = self._left_units = 0.0
        self._has_waited = self._is_warm = self._is_blocked = False
        self._running: dict[Job, None] = {}
        self._shorts, self._longs = _Tally(self.limits), _Tally(self.limits)
        """Shorts that wait or are in the engine, and longs that are in it."""
        self._waiting_shorts = self._waiting_longs = 0
        self._demand = demand.Demand(0.0)
        """Of shorts."""

    @property
    def running(self) -> int:
        """Jobs in the engine."""
        return len(self._running)

    def own(self, partitions: Collection[Partition]) -> None:
        """Take over a new assignment, whole."""
        self.partitions = {}
        for partition in partitions:
            partition.owner = self
            self.partitions.setdefault(partition.lane, []).append(partition)
        jobs = [job for partition in partitions for job in partition.waiting]
        self.queued_units = sum(job.ask.cost_units for job in jobs)
        self._waiting_longs = sum(job.is_long for job in jobs)
        self._waiting_shorts = len(jobs) - self._waiting_longs
        self._shorts = _Tally(self.limits)
        for job in (*self._running, *jobs):
            if not job.is_long:
                self._shorts.add(job.ask, 1)
        self._topics = {topic_of(lane): [p.index for p in owned] for lane, owned in self.partitions.items()}
        self._waiting = dict(Counter(partition.lane for partition in partitions if partition.waiting))
        self._is_blocked = False

    def note_append(self, partition: Partition, job: Job) -> None:
        """See `Owner`."""
        self.queued_units += job.ask.cost_units
        if job.is_long:
            self._waiting_longs += 1
        else:
            self._waiting_shorts += 1
            self._shorts.add(job.ask, 1)
        if len(partition.waiting) == 1:
            self._waiting[partition.lane] = self._waiting.get(partition.lane, 0) + 1
            self._is_blocked = False

    def note_left(self, partition: Partition, job: Job, *, is_gone: bool) -> None:
        """See `Owner`."""
        if job.is_long:
            self._waiting_longs -= 1
        else:
            self._waiting_shorts -= 1
            if is_gone:
                self._shorts.add(job.ask, -1)
        # Sums of fractions may end beside zero, and an empty queue must not look like a full engine.
        has_more = self._waiting_shorts or self._waiting_longs
        self.queued_units = self.queued_units - job.ask.cost_units if has_more else 0.0
        if not partition.waiting:
            self._waiting[partition.lane] -= 1
            if not self._waiting[partition.lane]:
                del self._waiting[partition.lane]

    def note_end(self, job: Job, mark: Mark) -> None:
        """One of its jobs has its first token, or its last."""
        self._is_blocked = False
        if mark is Mark.FIRST_TOKEN:
            self._ttft_s = capacity.averaged(self._ttft_s, job.first_token_s - job.started_s)
            return
        (self._longs if job.is_long else self._shorts).add(job.ask, -1)
        del self._running[job]
        self._is_warm = True
        self.finished_units += job.ask.cost_units
        self._left_units += job.ask.cost_units
        self._latency_s = capacity.averaged(self._latency_s, job.finished_s - job.started_s)

    def refill(self, now_s: float) -> None:
        """Hand over jobs, lane by lane as the shares say, while there is room."""
        if self._is_blocked:
            return
        waiting = self._waiting
        self._demand = demand.follow(self._demand, self._shorts.share, now_s)
        while waiting:
            lane = selection.choose(self._credit, waiting, self._window() if self._waiting_longs else _OPEN)
            if lane is None:
                self._is_blocked = True
                break
            partition = self._first(lane)
            job = partition.waiting[0]
            if job.last_start_s < now_s:
                self._shed(partition.take(is_gone=True), now_s)
                continue
            if not self.has_room(job.ask):
                self._is_blocked = True
                break
            self._credit = selection.charge(self._terms.shares, self._credit, waiting, lane, job.ask.cost_units)
            partition.take()
            if job.copies:
                job.begun_from(partition)
            if job.is_long:
                self._longs.add(job.ask, 1)
            self.dispatched_units += job.ask.cost_units
            self._running[job] = None
            self.enter(job, selection.rank(lane), now_s)
        if not waiting:
            self._has_waited = False

    def report(self, now_s: float) -> Telemetry:
        """The present figures."""
        if now_s - self._looked_s >= LOOK_S:
            self._look(now_s)
        model = self.model
        return Telemetry(
            consumer=self.name,
            pool=self._terms.pool,
            state=self.state,
            at_s=now_s,
            lanes=self._topics,
            queued_units=max(0.0, self.queued_units),
            inflight_units=max(0.0, self.held.cost_units),
            inflight_requests=self.held.sequences,
            free_kv_tokens=model.hardware.kv_tokens - model.reserved_kv_tokens,
            dispatched_units_total=self.dispatched_units,
            finished_units_total=self.finished_units,
            latency_ewma_s=self._latency_s,
            ttft_ewma_s=self._ttft_s,
            total_kv_tokens=model.hardware.kv_tokens,
            capacity_units_per_s=capacity.units_per_s(self._seen, _CAPACITY),
            capacity_units=capacity.units(self._seen, _CAPACITY),
        )

    def _window(self) -> selection.Window:
        cap_ratio = demand.longs_cap_ratio(
            self._demand, self.limits.sequences, is_short_waiting=self._waiting_shorts > 0,
            rules=self._terms.longs,
        )  # fmt: skip
        return selection.Window(self._longs.share, cap_ratio)

    def _look(self, now_s: float) -> None:
        waits = bool(self._waiting)
        made = self.model.tokens_made
        done_units = self._left_units + sum(
            [capacity.done_units(job.ask, made(job)) for job in self._running if job.first_token_s >= 0]
        )
        interval = capacity.Interval(
            now_s - self._looked_s, self._has_waited and waits, done_units - self._done_units, self.held.cost_units
        )
        self._seen = capacity.look(self._seen, interval, _CAPACITY)
        self._looked_s, self._done_units, self._has_waited = now_s, done_units, waits and self._is_warm

    def _first(self, lane: Lane) -> Partition:
        """The partition with the lane's next job."""
        owned = self.partitions[lane]
        if len(owned) == 1:
            return owned[0]
        return min((part for part in owned if part.waiting), key=lambda part: part.waiting[0].admitted_s)


def topic_of(lane: Lane) -> str:
    """The name that telemetry gives a lane."""
    return f"{lane.tier}.{lane.length}"
