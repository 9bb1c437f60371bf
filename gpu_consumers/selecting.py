"""Who enters the engine next: the policies asked with what waits and what the engine holds, and their accounts."""

from collections.abc import Callable, Collection

from gpu_consumers.assignment import Entry
from gpu_consumers.buffers import Buffers, one_group
from gpu_consumers.policy import demand, selection, static_batch
from gpu_consumers.policy.selection import Lane
from gpu_consumers.running import Runner
from gpu_consumers.settings import Gpu
from topics.clock import Clock
from topics.records import Length


class Selector:
    """Owns the buffers.  Touched only by the loop.

    Invariant: `credit` is charged for what began, once each.
    """

    def __init__(self, gpu: Gpu, shares: selection.Shares, runner: Runner, clock: Clock) -> None:
        self._shares, self._runner, self._clock = shares, runner, clock
        self._rules, self._batches = gpu.longs(), gpu.static_batches()
        rooms = gpu.model_rooms
        apart = (lambda model: model if model in rooms else "") if rooms else one_group
        self.buffers = Buffers(apart if self._batches is None else str, gpu.start_limits())
        self.credit = selection.Credit()
        self.demands = dict.fromkeys(Length, demand.Demand(clock.mono_s()))
        self.due_s: float | None = None
        """When to ask again although nothing happens, by the monotonic clock."""
        self._batch_of: str | None = None

    def begin_turn(self) -> None:
        """What is seated from now on is claimed together: one batch."""
        now_s, held = self._clock.mono_s(), self._runner.seats
        for length, before in self.demands.items():
            present_ratio = held.share(length, self.buffers.by_length[length])
            self.demands[length] = demand.follow(before, present_ratio, now_s)
        self._batch_of = None
        self.due_s = None

    def seat(self, entry: Entry) -> bool:
        """Take a seat for it, if there is one."""
        if not (self._is_in_batch(entry) and self._runner.has_room(entry)):
            return False
        if not self._runner.seats.has_room_of_model(entry):
            return False
        self._runner.reserve(entry)
        self._batch_of = self.buffers.group(entry)
        return True

    def select(self, limit: int, may_run: Callable[[Entry], bool]) -> list[Entry]:
        """Take what the engine has room for, suspects that may run before all others; `charge` charges."""
        chosen: list[Entry] = []
        passed: set[str] = set()
        for entry in self.buffers.suspects():
            if len(chosen) == limit:
                break
            if not may_run(entry) or self.buffers.group(entry) in passed:
                continue
            if self.seat(entry):
                chosen.append(self._take(entry, [entry.lane, *self.buffers.waiting()]))
            elif self._runner.seats.has_room_of_model(entry):
                return chosen  # nobody may pass it, or it would never find room
            else:
                passed.add(self.buffers.group(entry))
        return chosen + self._select_in_order(limit - len(chosen), passed | self._not_now())

    def _select_in_order(self, limit: int, passed: set[str]) -> list[Entry]:
        """Lane by lane as the shares say if all of it begins; groups that are passed over apart."""
        chosen: list[Entry] = []
        buffers, credit = self.buffers, self.credit
        while len(chosen) < limit:
            waiting = buffers.waiting(passed)
            lane = selection.choose(credit, waiting, self._window())
            entry = None if lane is None else buffers.head(lane, passed)
            if lane is None or entry is None:
                break
            if not self.seat(entry):
                if self._runner.seats.has_room_of_model(entry):
                    break
                passed.add(buffers.group(entry))
                continue
            if self._batches is not None:
                passed |= buffers.groups.keys() - {buffers.group(entry)}
            credit = selection.charge(self._shares, credit, waiting, lane, entry.ask.cost_units)
            chosen.append(self._take(entry, waiting))
        return chosen

    def _take(self, entry: Entry, beside: Collection[Lane]) -> Entry:
        entry.beside = beside
        self.buffers.take(entry)
        entry.assignment.inflight += 1
        return entry

    def demand_ratio(self, length: Length) -> float:
        """Share of the engine that work of this length took lately, waiting work included."""
        lately = self.demands[length]
        return demand.follow(lately, lately.present_ratio, self._clock.mono_s()).ratio

    def charge(self, entry: Entry) -> None:
        """It begins."""
        self.credit = selection.charge(self._shares, self.credit, entry.beside, entry.lane, entry.ask.cost_units)

    def _window(self) -> selection.Window:
        seats, short_wait = self._runner.seats, self.buffers.by_length[Length.SHORT].sequences > 0
        shorts, sequences = self.demands[Length.SHORT], seats.limits.sequences
        return selection.Window(
            seats.share(Length.LONG),
            demand.longs_cap_ratio(shorts, sequences, is_short_waiting=short_wait, rules=self._rules),
        )

    def _is_in_batch(self, entry: Entry) -> bool:
        """Whether an engine that takes whole batches may take it with what was seated in this turn."""
        if self._batches is None:
            return True
        if self._batch_of is None:
            return self._runner.seats.held.sequences == 0
        return self._batch_of == self.buffers.group(entry)

    def _not_now(self) -> set[str]:
        """Groups whose time has not come."""
        groups = set(self.buffers.groups)
        if self._batches is None:
            return set()
        if self._batch_of is not None:
            return groups - {self._batch_of}
        waiting = {
            group: static_batch.Waiting(
                count, tuple((entry.lane.tier, entry.here_s) for entry in self.buffers.heads(group))
            )
            for group, count in self.buffers.groups.items()
        }
        is_free = self._runner.seats.held.sequences == 0
        match static_batch.plan(waiting, self._batches, self._clock.mono_s(), is_free=is_free):
            case static_batch.Wait(until_s):
                self.due_s = until_s
                return groups
            case static_batch.Dispatch(models):
                return groups - models
