"""Reconcile what was sent with what was answered, from the topics alone."""

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Message

from rampmeter import reading
from rampmeter.output import Output
from rampmeter.resubmission import is_replay
from streams.settings import StreamsSettings
from topics import answers, catalog, clients, codec
from topics.outcomes import Outcome
from topics.records import Origin, Reply

SHOWN = 20

Place = tuple[str, int, int]
"""Topic, partition and offset of a landing record."""


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

    def answer(self, reply: Reply) -> None:
        """Note a terminal reply."""
        if reply.origin is None:
            return
        if reply.repeat:
            self.repeated.add(_place(reply.origin))
        else:
            self.answers[_place(reply.origin)] += 1
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

    def is_clean(self) -> bool:
        """Tell whether nothing was lost or answered twice."""
        return self.lost == 0 and self.duplicates == 0


def report(ledger: Ledger, now_s: float, pending_s: float) -> Audit:
    """Judge a ledger.  A record younger than `pending_s` without an answer is pending, an older one is lost."""
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
        lost_records=[_shown(place) for place in lost[:SHOWN]],
        doubled_records=[_shown(place) for place in doubled[:SHOWN]],
    )


def show(found: Audit, output: Output) -> None:
    """Print the findings."""
    if output.as_json:
        output.result(found)
        return
    numbers = ("sent", "answered", "pending", "dead_lettered", "repeats", "replays", "lost", "duplicates")
    rows = [(name.replace("_", " "), str(getattr(found, name))) for name in numbers]
    output.table("Audit", ("", ""), [*rows, *((f"  {name}", str(count)) for name, count in found.outcomes.items())])
    for what, records in (("lost", found.lost_records), ("answered twice", found.doubled_records)):
        for record in records:
            output.text(f"{what}: {record}")


def read(settings: StreamsSettings, since_s: float) -> Ledger:
    """Read the landing, reply and dead-letter topics from `since_s` up to their ends as they are now.

    Landing records are read first: an answer to what was read is then never missed for being younger.
    """
    ledger = Ledger()
    for message in reading.since(settings, [spot.topic for spot in catalog.landings(settings)], since_s):
        ledger.sent_s[_place_of(message)] = clients.written_s(message)
        if is_replay(reading.headers(message)):
            ledger.replayed.add(_place_of(message))
    for message in reading.since(settings, reading.reply_topics(settings), since_s):
        answer = answers.read(message.value())
        if isinstance(answer, Reply):
            ledger.answer(answer)
    for message in reading.since(settings, [settings.topic("dead_letters")], since_s):
        letter = codec.decode_dead_letter(message.value() or b"")
        ledger.dead.add((letter.topic, letter.partition, letter.offset))
    return ledger


def _place_of(message: Message) -> Place:
    return (message.topic() or "", message.partition() or 0, message.offset() or 0)


def _place(origin: Origin) -> Place:
    return (origin.topic, origin.partition, origin.offset)


def _shown(place: Place) -> str:
    return f"{place[0]}[{place[1]}]@{place[2]}"
