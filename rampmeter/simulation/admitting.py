"""Admission in virtual time: the policy's verdict on the ledger's facts, and the wait before a lane."""

from collections import deque
from collections.abc import Callable

from rampmeter.simulation.jobs import Job
from rampmeter.simulation.ledger import Ledger
from rampmeter.simulation.timeline import Timeline
from streams import rules
from streams.admit import LOOK_AGAIN_S
from streams.policy import admission
from streams.policy.admission import Admit, Defer, Hold, Reject
from streams.policy.sharing import Capacity
from streams.settings import StreamsSettings
from topics.outcomes import Reason
from topics.records import Tier


class Admission:
    """One pool's.  What must wait waits in memory by lane and tenant, in order of arrival.

    Of those that wait only the first of each lane and tenant is asked about: the others are refused what it is.
    """

    def __init__(
        self,
        timeline: Timeline,
        settings: StreamsSettings,
        ledger: Ledger,
        place: Callable[[Job, float], None],
        *,
        defers: bool = False,
    ) -> None:
        """`place` puts an admitted job on its lane; with `defers` long waits have the delays of the topics."""
        streams, self._defers = settings.streams, defers
        self._timeline, self._streams, self.ledger, self._place = timeline, streams, ledger, place
        self._rules, self._max_deferral_s = rules.of_admission(settings), streams.max_deferral_s
        self._max_wait_s = dict(streams.max_wait_s)
        self.capacity = Capacity()
        self._held: dict[tuple[str, str], deque[Job]] = {}
        self._due_s: dict[tuple[str, str], float] = {}
        self._for_room: set[Job] = set()

    def arrive(self, job: Job, now_s: float) -> None:
        """Decide on a new request."""
        verdict = self._decide(job, now_s, is_back=False)
        if verdict is not None:
            self._wait(job, verdict, now_s)

    def end(self, job: Job, now_s: float) -> None:
        """An admitted job ended, or was dropped from its lane."""
        real_units = job.asked.real_units
        self.ledger.settle(job.asked, now_s, 0.0 if real_units is not None and job.started_s < 0 else real_units)

    def held_units(self) -> tuple[float, ...]:
        """What waits for room on the lanes, by tier."""
        units = dict.fromkeys(Tier, 0.0)
        for job in self._for_room:
            units[Tier(job.asked.work.request.priority)] += job.ask.cost_units
        return tuple(units.values())

    def held_requests(self) -> int:
        """How many wait for room."""
        return len(self._for_room)

    def _note(self, job: Job, verdict: Hold | Defer | None) -> None:
        """It begins to wait, or does so no more."""
        self.ledger.wait(job.asked, is_over=verdict is None)
        if verdict is not None and verdict.reason is Reason.FAIR_SHARE:
            self._for_room.add(job)
        else:
            self._for_room.discard(job)

    def _wait(self, job: Job, verdict: Hold | Defer, now_s: float) -> None:
        """Let it wait as it must."""
        self._note(job, verdict)
        if self._is_away(verdict):
            self._send_away(job, verdict, now_s)
            return
        flow = job.asked.flow
        if not self._held:
            self._timeline.at(now_s + self._streams.fair.look_every_s, self._look)
        if flow not in self._held:
            self._held[flow], self._due_s[flow] = deque(), now_s + min(_wait_s(verdict), LOOK_AGAIN_S)
        self._held[flow].append(job)

    def _is_away(self, verdict: Hold | Defer) -> bool:
        return self._defers and isinstance(verdict, Defer)

    def _send_away(self, job: Job, verdict: Hold | Defer, now_s: float) -> None:
        """It waits in a delay topic, and nobody looks at it until it is back."""

        def come_back(then_s: float) -> None:
            self._note(job, None)
            if job.last_start_s < then_s:
                self._timeline.shed(job, then_s)
            elif (again := self._decide(job, then_s, is_back=True)) is not None:
                self._wait(job, again, then_s)

        self._timeline.at(now_s + _wait_s(verdict), come_back)

    def _decide(self, job: Job, now_s: float, *, is_back: bool) -> Hold | Defer | None:
        """How it must wait; None when it has another verdict."""
        work = job.asked.work
        request = work.request
        asked = admission.terms(
            request, work.price, now_s, max_deferral_s=self._max_deferral_s,
            max_wait_s=self._max_wait_s[request.priority], is_back=is_back,
        )  # fmt: skip
        facts = self.ledger.facts(job.asked, now_s, is_back=is_back)
        match admission.decide(asked, facts, self.capacity, self._rules):
            case Admit():
                self.ledger.admit(job.asked, now_s)
                job.admitted_s = now_s
                self._place(job, now_s)
            case (Hold() | Defer()) as verdict:
                return verdict
            case Reject(outcome=outcome):
                job.outcome = outcome
                self._timeline.shed(job, now_s)
        return None

    def _look(self, now_s: float) -> None:
        """Ask for those that are due, the tenant that was served least first, one of each flow in turn."""
        due = [flow for flow, due_s in self._due_s.items() if due_s <= now_s]
        due.sort(key=lambda flow: (self.ledger.attained_units(flow[1], now_s), self._held[flow][0].arrived_s))
        while due:
            due = [flow for flow in due if self._ask(flow, now_s)]
        if self._held:
            self._timeline.at(now_s + self._streams.fair.look_every_s, self._look)

    def _ask(self, flow: tuple[str, str], now_s: float) -> bool:
        """Ask for the first of a flow; whether the next one is to be asked for too."""
        held = self._held[flow]
        job = held[0]
        self._note(job, None)
        if job.last_start_s < now_s:
            self._timeline.shed(job, now_s)
        elif (verdict := self._decide(job, now_s, is_back=True)) is not None:
            self._note(job, verdict)
            if not self._is_away(verdict):
                self._due_s[flow] = now_s + min(_wait_s(verdict), LOOK_AGAIN_S)
                return False
            self._send_away(job, verdict, now_s)
        held.popleft()
        if not held:
            del self._held[flow], self._due_s[flow]
        return bool(held)


def _wait_s(verdict: Hold | Defer) -> float:
    return verdict.wait_s if isinstance(verdict, Hold) else float(verdict.delay_s)
