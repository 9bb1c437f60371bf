"""`rampmeter replay-decisions`: every decision in the log made again, and each that comes out otherwise."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Message

from rampmeter import positions, reading
from rampmeter.hindsight import landed, redecide
from rampmeter.hindsight.landed import Key, Readings
from rampmeter.hindsight.redecide import Books, Difference
from rampmeter.output import Output
from streams.intake import Landed
from topics import admin, catalog, clients, codec
from topics.records import Decision, Origin

KEPT = 1000
"""Entries with differences that are named; all are counted."""
SHOWN = 20
WAITING = 20_000
"""Requests whose landing records are read in one go.  Too small: the topics are read often.  Too large: memory."""


class Changed(msgspec.Struct, frozen=True):
    """An entry that comes out otherwise now."""

    id: str
    stage: str
    topic: str
    partition: int
    offset: int
    fields: list[Difference]


class Replay(msgspec.Struct, frozen=True):
    """The findings.  What is counted apart was not compared, or not in all its parts."""

    decisions: int
    compared: int
    differ: int
    by_stage: dict[str, int]
    recorded: int
    """Orders that were followed, and what carries out an earlier decision."""
    other_versions: dict[str, int]
    other_settings: int
    """Compared only in what follows from the entry alone."""
    records_gone: int
    """Whose landing record the log does not hold any more: compared without it."""
    differences: list[Changed]

    def is_clean(self) -> bool:
        """Tell whether every decision that was compared came out the same."""
        return self.differ == 0


@dataclass(slots=True)
class _Entry:
    decision: Decision
    place: Origin
    differences: list[Difference]


@dataclass(slots=True)
class Replaying:
    """Decisions on their way through.  Invariant: only what waits for its landing record is kept, and what differs."""

    books: Books
    hashes: frozenset[str]
    """Of the settings whose decisions can be made again by these books in all their parts."""
    compared: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    recorded: int = 0
    other_settings: int = 0
    records_gone: int = 0
    differ: int = 0
    changed: list[Changed] = field(default_factory=list)
    waiting: defaultdict[Key, list[_Entry]] = field(default_factory=lambda: defaultdict(list))

    def take(self, decision: Decision, place: Origin) -> None:
        """Make one decision again."""
        if not redecide.made_by_policy(decision):
            self.recorded += 1
            return
        version = str(decision.inputs.get("policy_version", "none"))
        if version != redecide.VERSIONS[decision.stage]:
            self.versions[version] += 1
            return
        self.compared[decision.stage] += 1
        is_same_settings = decision.settings_hash in self.hashes
        self.other_settings += not is_same_settings
        found = redecide.differences(decision, self.books if is_same_settings else None)
        entry, key = _Entry(decision, place, found), landed.key_of(decision)
        if key is not None and is_same_settings:
            self.waiting[key].append(entry)
        else:
            self._close(entry)

    def land(self, record: Landed, spot: catalog.Landing, readings: Readings) -> None:
        """Read one landing record again, for the entries that tell of it."""
        for key in landed.keys(record) if self.waiting else ():
            for entry in self.waiting.pop(key, ()):
                entry.differences += readings.differences(entry.decision, record, spot)
                self._close(entry)

    def miss(self) -> None:
        """Whatever still waits has lost its record."""
        for entries in self.waiting.values():
            self.records_gone += len(entries)
            for entry in entries:
                self._close(entry)
        self.waiting.clear()

    def result(self) -> Replay:
        """What was found."""
        compared, apart = sum(self.compared.values()), self.recorded + sum(self.versions.values())
        return Replay(
            decisions=compared + apart,
            compared=compared,
            differ=self.differ,
            by_stage=dict(sorted(self.compared.items())),
            recorded=self.recorded,
            other_versions=dict(sorted(self.versions.items())),
            other_settings=self.other_settings,
            records_gone=self.records_gone,
            differences=self.changed,
        )

    def _close(self, entry: _Entry) -> None:
        if not entry.differences:
            return
        self.differ += 1
        if len(self.changed) < KEPT:
            place = entry.place
            self.changed.append(
                Changed(
                    id=entry.decision.id,
                    stage=entry.decision.stage,
                    topic=place.topic,
                    partition=place.partition,
                    offset=place.offset,
                    fields=entry.differences,
                )
            )


def run(now: Books, then: Books, since_s: float) -> Replay:
    """Read the log from `since_s` up to its end as it is, and make by `now` again what was decided under `then`."""
    replaying = Replaying(now, frozenset({then.streams.short_hash(), then.autoscaler.short_hash()}))
    readings = Readings(now, admin.partition_counts(then.streams))
    for message, decision in decisions(then, since_s):
        replaying.take(decision, _place(message))
        if len(replaying.waiting) >= WAITING:
            _read_again(replaying, readings, then)
    _read_again(replaying, readings, then)
    return replaying.result()


def _read_again(replaying: Replaying, readings: Readings, then: Books) -> None:
    """Read the landing records that entries wait for; what is not there any more is compared without."""
    if not replaying.waiting:
        return
    first_s = min(arrived_s for _, arrived_s in replaying.waiting)
    spots = {spot.topic: spot for spot in catalog.landings(then.streams)}
    for message in reading.since(then.streams, spots, first_s - reading.SKEW_S):
        replaying.land(_landed(message), spots[message.topic() or ""], readings)
        if not replaying.waiting:
            break
    replaying.miss()


def decisions(books: Books, since_s: float) -> Iterator[tuple[Message, Decision]]:
    """The decision log."""
    return reading.records(books.streams, "decisions", codec.decode_decision, since_s)


def show(found: Replay, output: Output) -> None:
    """Print the findings."""
    if output.as_json:
        output.result(found)
        return
    rows = [(name.replace("_", " "), str(getattr(found, name))) for name in ("decisions", "compared")]
    rows += [(f"  {stage}", str(count)) for stage, count in found.by_stage.items()]
    rows += [(f"of policy version {version}", str(count)) for version, count in found.other_versions.items()]
    apart = ("recorded", "other_settings", "records_gone", "differ")
    rows += [(name.replace("_", " "), str(getattr(found, name))) for name in apart]
    output.table("Decisions made again", ("", ""), rows)
    for one in found.differences[:SHOWN]:
        output.text(f"{one.id} ({one.stage}) at {positions.shown(one.topic, one.partition, one.offset)}")
        for each in one.fields:
            output.text(f"  {each.field}: logged {_shown(each.logged)}, now {_shown(each.again)}")
    if len(found.differences) > SHOWN:
        output.text(f"… --json names the first {KEPT}")
    if found.other_settings:
        output.say(
            f"{found.other_settings} were made under other settings than those of this command: give it the workers'"
            " RAMPMETER_CONFIG and variables to compare them whole"
        )


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def _place(message: Message) -> Origin:
    return Origin(topic=message.topic() or "", partition=message.partition() or 0, offset=message.offset() or 0)


def _landed(message: Message) -> Landed:
    pairs = [(name, value if isinstance(value, bytes) else (value or "").encode()) for name, value in
             reading.headers(message)]  # fmt: skip
    return Landed(_place(message), message.value(), message.key(), pairs, clients.written_s(message))
