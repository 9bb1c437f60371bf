"""Reads all topics once, and collects what they say: of every id, or of one."""

import sys

from confluent_kafka import Message

from rampmeter import positions, reading
from rampmeter.explain.stories import Landing, Stories
from rampmeter.resubmission import REPLAY_HEADER
from streams.settings import StreamsSettings
from topics import answers, catalog, clients, codec
from topics.errors import DecodeError
from topics.records import Length, Origin, Reply, Tier


def gather(settings: StreamsSettings, since_s: float, only: str | None = None) -> Stories:
    """What was written from `since_s` up to the ends as they are now; with `only` little but what is of that id.

    Landing records come first: what belongs to one that was read is then not missed for being younger.
    """
    stories = Stories(settings.models)
    first_s = None
    for message in reading.since(settings, [spot.topic for spot in catalog.landings(settings)], since_s):
        names = _names(message)
        if only is None or only in names:
            at_s = clients.written_s(message)
            first_s = at_s if first_s is None else min(first_s, at_s)
            stories.land(_place(message), _landing(message, at_s, names))
    reader = _Reader(settings, stories, only)
    topics = [*reader.named, *reading.reply_topics(settings)]
    for message in reading.since(settings, topics, (since_s if first_s is None else first_s) - reading.SKEW_S):
        reader.take(message)
    # Last, since a letter may name only the record that it is about.
    for message in reading.since(settings, [settings.topic("dead_letters")], since_s - reading.SKEW_S):
        reader.take_letter(message)
    return stories


class _Reader:
    def __init__(self, settings: StreamsSettings, stories: Stories, only: str | None) -> None:
        self._stories, self._only = stories, only
        self._only_bytes = b"" if only is None else only.encode()
        t = settings.topics
        lanes = [
            catalog.lane(settings, pool, tier, length) for pool in settings.pools for tier in Tier for length in Length
        ]
        self.named = dict.fromkeys(lanes, "lanes")
        self.named |= {catalog.deferred(settings, delay_s): "deferred" for delay_s in t.defer_delays_s}
        self.named |= {catalog.retries(settings, delay_s): "retries" for delay_s in t.retry_delays_s}
        self.named |= {settings.topic(name): name for name in ("decisions", "usage")}

    def take(self, message: Message) -> None:
        """Take in a record; one that none of ours can have written says nothing."""
        topic, value = message.topic() or "", message.value() or b""
        family = self.named.get(topic, "replies")
        is_of_interest = self._only is None or self._only_bytes in value
        if not is_of_interest and family != "usage":
            return
        record, at_s = _shown(message), clients.written_s(message)
        try:
            match family:
                case "usage":
                    usage = codec.decode_usage(value)
                    self._stories.usage(usage, record, of_interest=self._only in (None, usage.id))
                case "decisions":
                    self._decision(value, record)
                case "replies":
                    answer = answers.read(value)
                    if isinstance(answer, Reply) and self._only in (None, answer.id):
                        self._stories.reply(answer, record, at_s)
                case _:
                    work = codec.decode_work(value)
                    if self._only in (None, work.request.id):
                        self._stories.work(work, family, topic, record, at_s)
        except codec.UNREADABLE:
            return

    def _decision(self, value: bytes, record: str) -> None:
        decision = codec.decode_decision(value)
        if self._only in (None, decision.id, decision.inputs.get("name")):
            self._stories.decision(decision, record)

    def take_letter(self, message: Message) -> None:
        """Take in a dead letter."""
        try:
            letter = codec.decode_dead_letter(message.value() or b"")
        except codec.UNREADABLE:
            return
        if self._only is None or letter.id in (None, self._only):
            self._stories.letter(letter, message.offset() or 0, _shown(message))


def _names(message: Message) -> tuple[str, ...]:
    """The ids under which a landing record may be known: the one that it claims, and that of its place."""
    topic, partition, offset = _place(message)
    origin = Origin(topic=topic, partition=partition, offset=offset)
    found = codec.fallback_id(origin)
    try:
        claims = codec.read_headers(reading.headers(message))
        event = codec.decode_event(message.value(), claims, message.key(), origin, clients.written_s(message))
    except DecodeError:
        return (found,)
    return (event.claims.id, found) if event.claims.id else (found,)


def _landing(message: Message, at_s: float, names: tuple[str, ...]) -> Landing:
    letters = [value for name, value in reading.headers(message) if name == REPLAY_HEADER]
    letter = letters[-1] if letters else None
    shown = letter.decode("utf-8", "replace") if isinstance(letter, bytes) else letter
    return Landing(at_s, len(message.value() or b""), names, shown)


def _place(message: Message) -> tuple[str, int, int]:
    return (sys.intern(message.topic() or ""), message.partition() or 0, message.offset() or 0)


def _shown(message: Message) -> str:
    return positions.shown(*_place(message))
