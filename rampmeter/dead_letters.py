"""The dead letters: listed, looked at, sent again.  A letter's number is its offset in their topic."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import msgspec
from confluent_kafka import Message

from rampmeter import reading, resubmission
from rampmeter.reading import Missing, Picker
from rampmeter.resubmission import LandingRecord
from rampmeter.signing import Signer
from topics import catalog, codec
from topics.clock import Clock
from topics.errors import PipelineError
from topics.outcomes import Reason
from topics.records import DeadLetter, Origin, Work
from topics.settings import Settings


class Unsendable(PipelineError):
    """A request that is in the log and cannot be sent again as things are."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant; an empty tuple is any."""

    since_s: float
    until_s: float
    reasons: tuple[Reason, ...] = ()
    topics: tuple[str, ...] = ()
    """Topics of the originals, by a part of their names."""

    def takes(self, letter: DeadLetter) -> bool:
        """Tell whether this letter is meant."""
        return (
            self.since_s <= letter.at_s <= self.until_s
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.topics or any(part in letter.topic for part in self.topics))
        )


@dataclass(frozen=True, slots=True)
class Filed:
    """A letter and its number."""

    number: int
    letter: DeadLetter

    @property
    def place(self) -> Origin:
        """Where the original lies."""
        return Origin(topic=self.letter.topic, partition=self.letter.partition, offset=self.letter.offset)


@dataclass(frozen=True, slots=True)
class Original:
    """What a letter refers to, as it lies in the log.  `work` when it was work on its way through our topics."""

    message: Message
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Resubmission:
    """A landing record to be sent for a letter."""

    number: int
    old_id: str
    id: str
    topic: str
    partition: int
    key: bytes | None
    landing: LandingRecord


@dataclass(frozen=True, slots=True)
class Manner:
    """How requests are sent again."""

    keeps_deadline: bool = True
    signer: Signer | None = None
    """Vouches for requests that came signed; without one they are refused."""


class Kept(msgspec.Struct, frozen=True):
    """A letter that cannot be sent again, and why."""

    number: int
    why: str


def listed(settings: Settings, wanted: Filter) -> Iterator[Filed]:
    """The letters that are meant, oldest first."""
    for message in reading.since(settings, [settings.topic("dead_letters")], wanted.since_s):
        filed = _filed(message)
        if filed is not None and wanted.takes(filed.letter):
            yield filed


class Archive:
    """Reads letters and what they refer to, one after the other; use in a `with` block."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._letters = settings.topic("dead_letters")
        self._landings = frozenset(spot.topic for spot in catalog.landings(settings))
        self._picker = Picker(settings)

    def letter(self, number: int) -> Filed:
        """The letter with this number; raises Missing."""
        place = self._place(number)
        filed = _filed(self._picker.one(place))
        if filed is None:
            raise Missing(f"{reading.shown(place)} is not a dead letter; `rampmeter dlq ls` lists them")
        return filed

    def original(self, filed: Filed) -> Original:
        """The record that a letter refers to; raises Missing when it has expired or is another one by now."""
        letter = filed.letter
        if letter.offset < 0:
            what = f"an answer to {letter.id} was refused by {letter.topic}, and lies nowhere"
            raise Missing(f"{what}: look at that topic, then ask again under another id")
        message = self._picker.one(filed.place)
        if codec.digest(message.value()) != letter.sha256:
            raise Missing(f"{reading.shown(filed.place)} holds another record now: the digests differ")
        if letter.topic in self._landings:
            return Original(message)
        try:
            return Original(message, codec.decode_work(message.value() or b""))
        except codec.UNREADABLE:
            return Original(message)

    def plan(self, letter: int | Filed, manner: Manner) -> Resubmission | Kept:
        """What is to be sent for a letter: its request's landing record, under a new id."""
        number = letter if isinstance(letter, int) else letter.number
        try:
            filed = self.letter(letter) if isinstance(letter, int) else letter
            found = self.original(filed)
            landing = self._landing(found)
            before = LandingRecord(landing.value(), tuple(reading.headers(landing)))
            self._check_deadline(before, manner)
            old_id = (
                found.work.request.id if found.work is not None else filed.letter.id or codec.fallback_id(filed.place)
            )
            new_id = resubmission.replay_id(old_id, number)
            named = reading.shown(self._place(number))
            renewed = resubmission.renewed(before, new_id, named, keeps_deadline=manner.keeps_deadline)
            renewed = self._signed(before, renewed, found, new_id, manner)
        except (Missing, Unsendable) as error:
            return Kept(number, str(error))
        topic, partition = landing.topic() or "", landing.partition() or 0
        return Resubmission(number, old_id, new_id, topic, partition, landing.key(), renewed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._picker.close()

    def _place(self, number: int) -> Origin:
        return Origin(topic=self._letters, partition=0, offset=number)

    def _landing(self, found: Original) -> Message:
        """The landing record that the original is, or that it came from."""
        if found.work is None:
            if found.message.topic() in self._landings:
                return found.message
            raise Unsendable(
                "the record could not be read, so nothing tells whose request it was; only requests are replayed"
            )
        origin = found.work.request.origin
        if origin.topic not in self._landings:
            raise Unsendable(f"its request came from {origin.topic}, which is no landing topic")
        landing = self._picker.one(origin)
        if bytes(memoryview(found.work.request.body)) not in (landing.value() or b""):
            raise Missing(f"{reading.shown(origin)} holds another record now: it does not have the request's body")
        return landing

    def _check_deadline(self, before: LandingRecord, manner: Manner) -> None:
        deadline_s, now_s = resubmission.deadline_s(before), self._clock.wall_s()
        if manner.keeps_deadline and deadline_s is not None and deadline_s <= now_s:
            raise Unsendable(f"its deadline passed {now_s - deadline_s:.0f} s ago; --drop-deadline removes it")

    def _signed(
        self, before: LandingRecord, renewed: LandingRecord, found: Original, new_id: str, manner: Manner
    ) -> LandingRecord:
        """The record as it is where nobody signs; else under a token for its new id."""
        if not any(name == codec.TOKEN_HEADER for name, _ in before.headers):
            return renewed
        token = resubmission.token_of(before)
        request = None if found.work is None else found.work.request
        if token is None or not resubmission.may_sign(token, request):
            raise Unsendable("it is signed, and admission never believed its token, so nobody else may vouch for it")
        if manner.signer is None:
            raise Unsendable(
                "it is signed for its old id; name a key of yours in signing.key_id and signing.secret_file"
            )
        return resubmission.signed(renewed, token, new_id, manner.signer, self._clock.wall_s())


def _filed(message: Message) -> Filed | None:
    try:
        return Filed(message.offset() or 0, codec.decode_dead_letter(message.value() or b""))
    except codec.UNREADABLE:
        return None  # a foreign record
