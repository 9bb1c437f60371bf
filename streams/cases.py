"""One pending request on its way through a micro-batch of admission."""

from dataclasses import dataclass, field

import msgspec

from streams.budgets import Ask, Redelivered, Repeated, Standing
from streams.holding import Pending
from streams.outbox import Outgoing
from streams.policy.admission import Admit, Hold, Reject, Terms, Verdict
from streams.policy.evidence import Field
from streams.repeats import Place
from topics.outcomes import Reason
from topics.records import Work


@dataclass(slots=True, eq=False)
class Case:
    """One pending request on its way through a batch."""

    pending: Pending
    asked: Terms | None
    ask: Ask
    paused: str | None = None
    records: list[Outgoing] = field(default_factory=list)
    """Those that belong to no verdict."""
    verdict: Verdict | None = None
    grounds: dict[str, Field] = field(default_factory=dict)
    unreserved: bool = False
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


def as_reserved(verdict: Verdict, *, is_paid: bool) -> Verdict:
    """The ledger has the last word where the two differ, by the last digit of a sum."""
    if is_paid:
        return verdict if isinstance(verdict, Admit) else Admit()
    return Hold(0.0, Reason.FAIR_SHARE) if isinstance(verdict, Admit) else verdict


def why_ended(verdict: Reject) -> str:
    """A verdict as the ledger keeps it."""
    return msgspec.json.encode(verdict).decode()
