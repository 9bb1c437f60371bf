"""Admission in virtual time: the policy's verdict on the ledger's facts, and the wait before a lane."""

from collections import deque
from collections.abc import Callable

from rampmeter.simulation.jobs import Job
from rampmeter.simulation.ledger import Ledger, flow_of
from rampmeter.simulation.timeline import Timeline
from streams.policy import admission
from streams.policy.admission import Admit, Reject
from streams.policy.sharing import Capacity
from streams.settings import StreamsSettings

LOOK_AGAIN_S = 0.25
"""Longest until one that waits is asked about again, as in `streams.admit`."""


class Admission:
    """One pool's.  What must wait waits in memory by lane and tenant, in order of arrival.

    Of those that wait only the first of each lane and tenant is asked about: the others are refused what it is.
    """

    def __init__(
        self, timeline: Timeline, settings: StreamsSettings, ledger: Ledger, place: Callable[[Job, float], None]
    ) -> None:
        """`place` puts an admitted job on its lane."""
        streams = settings.streams
        self._timeline, self._streams, self.ledger, self._place = timeline, streams, ledger, place
        self._rules = admission.Rules(streams.fair.window_s, streams.fair.hold_s, settings.topics.defer_delays_s)
        self.capacity = Capacity()
        self._held: dict[tuple[str, str], deque[Job]] = {}

    def arrive(self, job: Job, now_s: float) -> None:
        """Decide on a new request."""
        if not self._decide(job, now_s, is_back=False):
            self._hold(job, now_s)

    def end(self, job: Job) -> None:
        """An admitted job ended, or was dropped from its lane."""
        self.ledger.settle(job.asked.work)

    def _decide(self, job: Job, now_s: float, *, is_back: bool) -> bool:
        """Whether it has a verdict that is not to wait."""
        work, streams = job.asked.work, self._streams
        asked = admission.terms(
            work.request, work.price, now_s, max_deferral_s=streams.max_deferral_s,
            max_wait_s=streams.max_wait_s[work.request.priority], is_back=is_back,
        )  # fmt: skip
        verdict = admission.decide(asked, self.ledger.facts(work, now_s), self.capacity, self._rules)
        if isinstance(verdict, Admit):
            self.ledger.admit(work, now_s)
            job.admitted_s = now_s
            self._place(job, now_s)
        elif isinstance(verdict, Reject):
            self._timeline.shed(job, now_s)
        else:
            return False
        return True

    def _hold(self, job: Job, now_s: float) -> None:
        flow = flow_of(job.asked.work)
        if flow not in self._held:
            self._held[flow] = deque()
            self._timeline.at(now_s + LOOK_AGAIN_S, lambda at_s: self._look(flow, at_s))
        self._held[flow].append(job)
        self.ledger.wait(job.asked.work, is_over=False)

    def _look(self, flow: tuple[str, str], now_s: float) -> None:
        held = self._held[flow]
        while held:
            job = held[0]
            self.ledger.wait(job.asked.work, is_over=True)
            if job.last_start_s < now_s:
                self._timeline.shed(job, now_s)
            elif not self._decide(job, now_s, is_back=True):
                self.ledger.wait(job.asked.work, is_over=False)
                break
            held.popleft()
        if held:
            self._timeline.at(now_s + LOOK_AGAIN_S, lambda at_s: self._look(flow, at_s))
        else:
            del self._held[flow]
