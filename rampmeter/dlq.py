"""`rampmeter dlq`: what its commands do and print."""

import base64
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from rampmeter import columns, dead_letters, durations, positions, reading, resubmission
from rampmeter.dead_letters import Archive, Filed, Filter, Kept, Manner, Original, Resubmission
from rampmeter.output import Output
from rampmeter.reading import Missing
from topics import clients, process
from topics.clock import Clock
from topics.errors import DependencyDown
from topics.outcomes import Reason
from topics.settings import Settings

CHUNK = 100
"""Records that are sent before their acknowledgements are awaited."""
ACKNOWLEDGED_WITHIN_S = 15.0
_DOWN = {
    KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - the library's public constants
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
}


class Listed(msgspec.Struct, frozen=True):
    """A letter as it is shown."""

    number: int
    at_s: float
    reason: Reason
    detail: str
    id: str | None
    topic: str
    partition: int
    offset: int
    sha256: str
    size_bytes: int
    by: str


class Traced(msgspec.Struct, frozen=True):
    """The request behind a record of ours."""

    id: str
    tenant: str
    model: str
    priority: str
    length: str
    attempt: int
    deferrals: int
    arrived_s: float
    deadline_s: float | None
    origin: str


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """A letter with what lies at its coordinates; `missing` says why nothing does."""

    letter: Listed
    missing: str | None = None
    headers: list[tuple[str, str]] = []
    request: Traced | None = None
    body: str | None = None
    body_b64: str | None = None


class Replayed(msgspec.Struct, frozen=True):
    """A letter that was sent again, and as what."""

    number: int
    old_id: str
    id: str
    topic: str
    partition: int


def list_letters(settings: Settings, wanted: Filter, limit: int, clock: Clock, output: Output) -> None:
    """Print the newest `limit` letters, oldest first."""
    kept: deque[Filed] = deque(maxlen=limit)
    count = 0
    for filed in dead_letters.listed(settings, wanted):
        kept.append(filed)
        count += 1
    if output.as_json:
        output.result({"dead_letters": [_listed(filed) for filed in kept], "not_shown": count - len(kept)})
        return
    rows = [
        (
            str(filed.number),
            durations.shown(clock.wall_s() - filed.letter.at_s),
            filed.letter.reason.value,
            reading.shown(filed.place).removeprefix(settings.topics.prefix),
            filed.letter.id or "",
        )
        for filed in kept
    ]
    if rows:
        output.text(columns.render(("NO", "AGE", "REASON", "RECORD", "ID"), rows, right=(0, 1)))
    more = f"; {count - len(kept)} older ones are not shown (--limit)" if count > len(kept) else ""
    output.say(f"{count} dead letters{more}")


def show_letter(settings: Settings, number: int, clock: Clock, output: Output, *, with_body: bool) -> None:
    """Print one letter and what it refers to; the body only when it is asked for."""
    with Archive(settings, clock) as archive:
        filed = archive.letter(number)
        try:
            found, missing = archive.original(filed), None
        except Missing as error:
            found, missing = None, str(error)
    shown = _shown(filed, found, missing, with_body=with_body)
    if output.as_json:
        output.result(shown)
        return
    for name, value in _lines(shown, clock.wall_s()):
        output.text(f"{name:<10}{columns.printable(value)}")
    if shown.body is not None or shown.body_b64 is not None:
        text = f"{shown.body_b64} (base64)" if shown.body is None else shown.body
        output.text("\n" + "\n".join(map(columns.printable, text.splitlines())))


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be sent again, and how; a dry one sends nothing."""

    letters: Sequence[int | Filed]
    manner: Manner
    dry: bool


def replay_letters(settings: Settings, wanted: Replay, clock: Clock, output: Output) -> int:
    """Send the originals of letters to their landing topics again; 1 when some could not be."""
    replayed: list[Replayed] = []
    kept: list[Kept] = []
    producer = clients.producer(settings, delivered_within_s=ACKNOWLEDGED_WITHIN_S)
    with Archive(settings, clock) as archive, output.progress("dead letters", len(wanted.letters)) as advance:
        planned = (archive.plan(letter, wanted.manner) for letter in wanted.letters)
        while chunk := list(islice(planned, CHUNK)):
            for done in _sent(settings, producer, chunk, dry=wanted.dry):
                if isinstance(done, Replayed):
                    replayed.append(done)
                else:
                    kept.append(done)
            advance(len(replayed) + len(kept), f"({len(kept)} refused)")
    if output.as_json:
        output.result({"replayed": replayed, "refused": kept, "dry_run": wanted.dry})
    for one in replayed:
        output.text(f"{one.number}  {one.topic}[{one.partition}]  {columns.printable(one.id)}")
    for refusal in kept:
        output.say(f"{refusal.number}: {columns.printable(refusal.why)}")
    output.say(f"{len(replayed)} {'would be replayed' if wanted.dry else 'replayed'}, {len(kept)} refused")
    return process.EXIT_FINDING if kept else 0


def _sent(
    settings: Settings, producer: Producer, chunk: list[Resubmission | Kept], *, dry: bool
) -> Iterator[Replayed | Kept]:
    """Send a chunk and wait for the broker; yields what became of each."""
    failed: dict[int, KafkaError] = {}
    for one in chunk:
        if isinstance(one, Resubmission) and not dry:
            _produce(producer, one, failed)
    producer.flush()
    for one in chunk:
        if isinstance(one, Kept):
            yield one
        elif (error := failed.get(one.number)) is None:
            yield Replayed(one.number, one.old_id, one.id, one.topic, one.partition)
        elif error.code() in _DOWN:
            servers = settings.kafka.get("bootstrap.servers", "")
            fix = "Replay again: what was sent already is not run twice."
            raise DependencyDown(f"Kafka did not take the records: {error.str()}", servers, fix)
        else:
            yield Kept(one.number, f"{one.topic} does not take it: {error.str()}")


def _produce(producer: Producer, one: Resubmission, failed: dict[int, KafkaError]) -> None:
    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed[one.number] = error

    landing = one.landing
    try:
        producer.produce(
            one.topic,
            landing.value,
            one.key,
            partition=one.partition,
            headers=list(landing.headers),
            on_delivery=delivered,
        )
    except KafkaException as error:  # refused at once, for example for its size
        failed[one.number] = error.args[0]


def _listed(filed: Filed) -> Listed:
    letter = filed.letter
    return Listed(
        filed.number, letter.at_s, letter.reason, letter.detail, letter.id, letter.topic, letter.partition,
        letter.offset, letter.sha256, letter.size_bytes, letter.by,
    )  # fmt: skip


def _shown(filed: Filed, found: Original | None, missing: str | None, *, with_body: bool) -> Shown:
    if found is None:
        return Shown(_listed(filed), missing)
    work = found.work
    traced = None
    if work is not None:
        request = work.request
        traced = Traced(
            request.id, request.tenant, request.model, request.priority.value, work.price.length.value, work.attempt,
            work.deferrals, request.arrived_s, request.deadline_s, reading.shown(request.origin),
        )  # fmt: skip
    body = body_b64 = None
    if with_body:
        raw = (found.message.value() or b"") if work is None else bytes(memoryview(work.request.body))
        try:
            body = raw.decode()
        except UnicodeDecodeError:
            body_b64 = base64.b64encode(raw).decode()
    headers = resubmission.readable(reading.headers(found.message))
    return Shown(_listed(filed), None, headers, traced, body, body_b64)


def _lines(shown: Shown, now_s: float) -> Iterator[tuple[str, str]]:
    letter, request = shown.letter, shown.request
    yield "number", str(letter.number)
    yield "age", durations.shown(now_s - letter.at_s)
    yield "by", letter.by
    yield "reason", f"{letter.reason}: {letter.detail}"
    yield "id", letter.id or "unknown"
    yield "record", positions.shown(letter.topic, letter.partition, letter.offset)
    yield "sha256", letter.sha256
    yield "size", f"{letter.size_bytes:,} B"
    yield "log", shown.missing or "the record is still there"
    if request is not None:
        yield "tenant", request.tenant
        yield "model", request.model
        yield "class", f"{request.priority}, {request.length}"
        yield "attempt", str(request.attempt)
        yield "arrived", f"{durations.shown(now_s - request.arrived_s)} ago, as {request.origin}"
        if request.deadline_s is not None:
            left_s = request.deadline_s - now_s
            yield "deadline", f"in {durations.shown(left_s)}" if left_s > 0 else f"{durations.shown(-left_s)} ago"
    for name, value in shown.headers:
        yield "header", f"{name}: {value}"
