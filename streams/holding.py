"""Requests that wait in this worker's memory, because what they wait for comes within `fair.hold_s`.

They are unacknowledged: a worker that dies leaves them to the next, which reads them again.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from streams.intake import Candidate
from topics.records import Work


@dataclass(slots=True, eq=False)
class Pending:
    """A candidate and what is to be told when it has ended here, whatever came of it."""

    candidate: Candidate
    done: Callable[[], None] = lambda: None
    held_since_s: float | None = None
    """When it began to wait in memory, by the process's own clock."""
    due_s: float = 0.0
    attained_units: float = 0.0
    """What its tenant was served lately, as of the last look."""
    is_told: bool = False
    """The decision log has it, with all that its price followed from."""
    span: Span | None = None
    """What is told of it to OpenTelemetry, if anyone listens."""

    @property
    def arrived_s(self) -> float:
        """When it landed."""
        item = self.candidate.item
        return item.request.arrived_s if isinstance(item, Work) else item.arrived_s

    @property
    def is_back(self) -> bool:
        """It was looked at before and waited."""
        item = self.candidate.item
        return self.held_since_s is not None or (isinstance(item, Work) and item.deferrals > 0)


_GROUPS = 10


@dataclass(slots=True)
class Holding:
    """Waiting requests by pool, lane and tenant, each group in order of arrival.  One writer, the event loop.

    Bound: about `limit` wait, and of one group a tenth of it, so that one tenant cannot fill it for all.
    """

    limit: int
    groups: dict[tuple[str, str, str], deque[Pending]] = field(default_factory=lambda: defaultdict(deque))
    count: int = 0
    units: float = 0.0

    def is_full(self, group: tuple[str, str, str]) -> bool:
        """No more of this group can wait here."""
        return self.count >= self.limit or len(self.groups.get(group, ())) >= max(1, self.limit // _GROUPS)

    def add(self, group: tuple[str, str, str], pending: Pending) -> None:
        """Let one wait behind those of its group that came earlier."""
        waiting = self.groups[group]
        if waiting and pending.arrived_s < waiting[-1].arrived_s:
            later = [waiting.pop()]
            while waiting and pending.arrived_s < waiting[-1].arrived_s:
                later.append(waiting.pop())
            waiting.append(pending)
            waiting.extend(reversed(later))
        else:
            waiting.append(pending)
        self.count += 1
        self.units += _units(pending)

    def take_due(self, now_s: float, most: int) -> list[Pending]:
        """Take out at most `most` of the groups whose first is due.

        The tenant that was served least comes first, one of each group in turn, in order of arrival within it.
        """
        due = [group for group, waiting in self.groups.items() if waiting[0].due_s <= now_s]
        due.sort(key=lambda group: (self.groups[group][0].attained_units, self.groups[group][0].arrived_s))
        taken: list[Pending] = []
        while due and len(taken) < most:
            taken.extend([self.groups[group].popleft() for group in due[: most - len(taken)]])
            for group in [group for group in due if not self.groups[group]]:
                due.remove(group)
                del self.groups[group]
        self.count -= len(taken)
        self.units -= sum(map(_units, taken))
        return taken

    def take_all(self, is_wanted: Callable[[Pending], bool]) -> Sequence[Pending]:
        """Take out all that are wanted, for a reason that has nothing to do with their turn."""
        taken = [pending for waiting in self.groups.values() for pending in waiting if is_wanted(pending)]
        chosen = set(map(id, taken))
        for group in list(self.groups):
            rest = deque(pending for pending in self.groups[group] if id(pending) not in chosen)
            if rest:
                self.groups[group] = rest
            else:
                del self.groups[group]
        self.count -= len(taken)
        self.units -= sum(map(_units, taken))
        return taken


def _units(pending: Pending) -> float:
    item = pending.candidate.item
    return item.price.cost_units if isinstance(item, Work) else 0.0
