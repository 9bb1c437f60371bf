"""Reconcile what was sent with what was answered, used and charged, from the topics alone."""

import sys
from collections import Counter
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Message

from rampmeter import accounts, charges, positions, reading
from rampmeter.accounts import Accounts, Place, Spot
from rampmeter.charges import Charges, Fault
from rampmeter.output import Output
from rampmeter.resubmission import is_replay
from streams.settings import StreamsSettings
from topics import catalog, clients, codec
from topics.outcomes import Outcome
from topics.records import Reply

SHOWN = 20
ADVICE = {
    Fault.REPLY_WITHOUT_USAGE: "answered, but nothing says what it used: see the log of the consumer that answered",
    Fault.USAGE_WITHOUT_REPLY: "used an engine and got no answer: see `rampmeter lag` and `rampmeter dlq ls`",
    Fault.DOUBLE_OUTCOME: "one id was run for two records: did Redis lose its memory in between?",
    Fault.DOUBLE_USAGE: "told twice what one answer used: find who wrote the record, and refund what it charged",
    Fault.ATTEMPT_GAP: "an earlier attempt left no usage: what it used was charged to nobody",
    Fault.COST_MISMATCH: "the reply and its usage disagree: compare the [models] of consumers and audit",
    Fault.CHARGE_MISMATCH: "charged something else than was used: compare the [models] of streams and audit",
    Fault.DOUBLE_SETTLEMENT: "charged more than once: refund what is too much (`rampmeter limits`)",
    Fault.UNSETTLED: "used and never charged: do streams workers run, and does Redis answer?",
}
"""What each finding means and what to do about it."""


@dataclass(slots=True)
class Ledger:
    """Landing records and what answered each."""

    sent_s: dict[Place, float] = field(default_factory=dict)
    answers: Counter[Place] = field(default_factory=Counter)
    repeated: set[Place] = field(default_factory=set)
    """Records that asked again with an id already answered, and got that answer."""
    dead: set[Place] = field(default_factory=set)
    replayed: set[Place] = field(default_factory=set)
    """Records that an operator sent again from a dead letter: requests of their own, answered on their own."""
    outcomes: Counter[str] = field(default_factory=Counter)
    accounts: Accounts = field(default_factory=Accounts)
    since_s: float = 0.0
    dedupe_window_s: float = 600.0

    def answer(self, reply: Reply) -> None:
        """Note a terminal reply."""
        if reply.origin is None:
            return
        if reply.repeat:
            self.repeated.add(accounts.place(reply.origin))
        else:
            self.answers[accounts.place(reply.origin)] += 1
            self.outcomes[str(reply.outcome)] += 1

    def is_answered(self, place: Place) -> bool:
        """Tell whether this record has an answer, or the copy of one."""
        return self.answers[place] > 0 or place in self.repeated


class Audit(msgspec.Struct, frozen=True):
    """The findings; `lost_records` and `doubled_records` name the first few."""

    sent: int
    answered: int
    lost: int
    duplicates: int
    pending: int
    dead_lettered: int
    repeats: int
    replays: int
    outcomes: dict[str, int]
    lost_records: list[str]
    doubled_records: list[str]
    charges: Charges

    def is_clean(self) -> bool:
        """Tell whether nothing was lost or answered twice, and all was charged as it was used."""
        return self.lost == 0 and self.duplicates == 0 and self.charges.is_clean()


def report(ledger: Ledger, now_s: float, pending_s: float) -> Audit:
    """Judge a ledger.  What misses something is pending while it is younger than `pending_s`, and then wrong."""
    open_places = [place for place in ledger.sent_s if not ledger.is_answered(place) and place not in ledger.dead]
    lost = sorted(place for place in open_places if now_s - ledger.sent_s[place] > pending_s)
    doubled = sorted(place for place, count in ledger.answers.items() if count > 1 and place in ledger.sent_s)
    return Audit(
        sent=len(ledger.sent_s),
        answered=sum(1 for place in ledger.sent_s if ledger.is_answered(place)),
        lost=len(lost),
        duplicates=sum(ledger.answers[place] - 1 for place in doubled),
        pending=len(open_places) - len(lost),
        dead_lettered=sum(1 for place in ledger.sent_s if place in ledger.dead),
        repeats=len(ledger.repeated),
        replays=len(ledger.replayed),
        outcomes={str(outcome): ledger.outcomes[outcome] for outcome in Outcome if ledger.outcomes[outcome]},
        lost_records=[positions.shown(*place) for place in lost[:SHOWN]],
        doubled_records=[positions.shown(*place) for place in doubled[:SHOWN]],
        charges=charges.judge(
            ledger.accounts,
            charges.Window(ledger.sent_s.keys(), ledger.since_s, now_s, pending_s, ledger.dedupe_window_s),
        ),
    )


def show(found: Audit, output: Output) -> None:
    """Print the findings."""
    if output.as_json:
        output.result(found)
        return
    numbers = ("sent", "answered", "pending", "dead_lettered", "repeats", "replays", "lost", "duplicates")
    rows = [(name.replace("_", " "), str(getattr(found, name))) for name in numbers]
    rows += [(f"  {name}", str(count)) for name, count in found.outcomes.items()]
    compared = ("answers", "usages", "settlements", "pending", "repeats", "reruns", "other_prices")
    rows += [(f"charges: {name.replace('_', ' ')}", str(getattr(found.charges, name))) for name in compared]
    rows += [(f"  {name.replace('_', ' ')}", str(count)) for name, count in found.charges.wrong.items() if count]
    output.table("Audit", ("", ""), rows)
    for what, records in (("lost", found.lost_records), ("answered twice", found.doubled_records)):
        for record in records:
            output.text(f"{what}: {record}")
    for kind in Fault:
        _show_kind(found.charges, kind, output)


def _show_kind(found: Charges, kind: Fault, output: Output) -> None:
    findings = [finding for finding in found.findings if finding.kind is kind]
    if not findings:
        return
    output.text(f"{kind.replace('_', ' ')} ({found.wrong[kind]}): {ADVICE[kind]}")
    for one in findings[:SHOWN]:
        output.text(f"  {one.id} at {positions.shown(one.topic, one.partition, one.offset)}: {one.detail}")
    if len(findings) > SHOWN:
        output.text(f"  … --json names the first {charges.KEPT}")


def read(settings: StreamsSettings, since_s: float) -> Ledger:
    """Read what was sent and what became of it, from `since_s` up to the ends of the topics as they are now.

    Landing records are read first, and usage after replies and decisions: what belongs to a record that was read is
    then never missed for being younger.
    """
    ledger = Ledger(accounts=Accounts(settings.models), since_s=since_s, dedupe_window_s=settings.dedupe_window_s)
    noted = ledger.accounts
    for message in reading.since(settings, [spot.topic for spot in catalog.landings(settings)], since_s):
        ledger.sent_s[_place_of(message)] = clients.written_s(message)
        if is_replay(reading.headers(message)):
            ledger.replayed.add(_place_of(message))
    early_s = since_s - reading.SKEW_S
    for message, reply in reading.replies(settings, early_s):
        ledger.answer(reply)
        if not reply.repeat:
            noted.reply(reply, _spot(message))
    for message, decision in reading.records(settings, "decisions", codec.decode_decision, early_s):
        noted.decision(decision, _spot(message))
    for message, usage in reading.records(settings, "usage", codec.decode_usage, early_s):
        noted.usage(usage, _spot(message))
    for _, letter in reading.records(settings, "dead_letters", codec.decode_dead_letter, early_s):
        ledger.dead.add((sys.intern(letter.topic), letter.partition, letter.offset))
        noted.dead_letter(letter.id)
    return ledger


def _place_of(message: Message) -> Place:
    return (sys.intern(message.topic() or ""), message.partition() or 0, message.offset() or 0)


def _spot(message: Message) -> Spot:
    return Spot(*_place_of(message), clients.written_s(message))
