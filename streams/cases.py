"""One pending request on its way through a micro-batch of admission."""

from dataclasses import dataclass, field, replace

import msgspec

from streams import metrics
from streams.budgets import Ask, New, Paid, Redelivered, Refused, Repeated, Standing
from streams.holding import Pending
from streams.outbox import Outgoing
from streams.policy import admission, evidence
from streams.policy.admission import Reject, Rules, Terms, Verdict
from streams.policy.evidence import Field
from streams.policy.sharing import Capacity
from streams.repeats import Place
from topics.records import Work


@dataclass(slots=True, eq=False)
class Case:
    """One pending request on its way through a batch."""

    pending: Pending
    asked: Terms | None
    ask: Ask
    now_s: float = 0.0
    """When it is decided."""
    paused: str | None = None
    records: list[Outgoing] = field(default_factory=list)
    """Those that belong to no verdict."""
    verdict: Verdict | None = None
    grounds: dict[str, Field] = field(default_factory=dict)
    unreserved: bool = False
    recalled: Redelivered | None = None
    """What the log says of it, if Redis may have forgotten it."""
    is_silent: bool = False
    """It waits for what another run of the same record does: nothing is decided, nothing is logged."""

    @property
    def group(self) -> tuple[str, str, str]:
        """Those it waits with in memory."""
        return self.ask.pool, self.ask.lane, self.ask.tenant

    @property
    def id(self) -> str:
        """The request's id."""
        return self.ask.id

    def recall(self, decided: Redelivered) -> None:
        """It was decided before: nothing is taken for it."""
        self.recalled, self.ask = decided, replace(self.ask, only_asks=True, closed=False)

    def known_as(self, standing: Standing) -> Standing:
        """What the ledger says of it, or what the log does when the ledger does not know it."""
        return self.recalled if self.recalled is not None and isinstance(standing, New) else standing

    def judge(self, standing: Paid | Refused, capacity: Capacity, rules: Rules) -> None:
        """Decide on what the ledger saw."""
        if self.asked is None:
            return
        facts = standing.facts
        metrics.OPEN_UNITS.labels(self.ask.pool).set(facts.share.pool_open_units)
        verdict = admission.decide(self.asked, facts, capacity, rules)
        is_paid = isinstance(standing, Paid)
        self.verdict = admission.as_reserved(verdict, is_paid=is_paid)
        self.grounds = evidence.of(self.asked, facts, capacity, rules)
        if self.verdict is not verdict:
            self.grounds["overruled"] = is_paid
        self.pending.attained_units = facts.attained_units

    def take_grounds(self) -> dict[str, Field]:
        """All that the verdict follows from, for the log; what the price followed from only the first time."""
        priced_on = {} if self.pending.is_told else self.pending.candidate.grounds
        self.pending.is_told = True
        return {**priced_on, "now_s": self.now_s, **self.grounds}


def answered_at(case: Case, standing: Standing | None) -> list[Place]:
    """Where the answer of a case may lie already, if anywhere."""
    item = case.pending.candidate.item
    if isinstance(standing, Repeated):
        return [Place(case.id, standing.reply_topic, standing.at_s)] if standing.may_be_answered else []
    if isinstance(standing, Redelivered):
        return [Place(case.id, case.ask.reply_topic, standing.at_s)] if standing.state == "finished" else []
    if standing is None and not isinstance(item, Work):
        # No ledger remembers that it is refused: after a crash only the log knows.
        return [Place(case.id, case.ask.reply_topic, item.arrived_s)]
    return []


def why_ended(verdict: Reject) -> str:
    """A verdict as the ledger keeps it."""
    return msgspec.json.encode(verdict).decode()
