"""Whether Kafka answers, its topics are as the catalogue says, and whether this user may do what a process must."""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection

from rampmeter.doctor.findings import Area, Finding, Health, ok
from rampmeter.state import hint
from topics import acls, admin, catalog, clients, drift
from topics.acls import Acl
from topics.catalog import Process
from topics.clock import Clock
from topics.settings import Settings

_TIMEOUT_S = 15.0
_PROBE_KEY = b"doctor:clock"
_SHOWN = 5
_SAFE_COPIES = 3


def check(settings: Settings) -> Iterator[Finding]:
    """The broker and its topics."""
    servers = settings.kafka["bootstrap.servers"]
    try:
        brokers = len(clients.admin(settings).list_topics(timeout=_TIMEOUT_S).brokers)
    except KafkaException as error:
        fix = "Start the broker, or set RAMPMETER_KAFKA__BOOTSTRAP_SERVERS and the security properties."
        said = f"{servers} does not answer: {error.args[0].str()}"
        yield Finding(Area.KAFKA, Health.DOWN, said, fix + hint(servers))
        return
    yield ok(Area.KAFKA, f"{servers} answers, {brokers} broker{'s' * (brokers != 1)}")
    copies = settings.topics.replication_factor
    if brokers >= _SAFE_COPIES and copies < _SAFE_COPIES:
        fix = "Set RAMPMETER_TOPICS__REPLICATION_FACTOR=3, and raise it for topics that exist."
        yield Finding(Area.KAFKA, Health.WARN, f"new topics get {copies} of {brokers} possible copies", fix)
    yield from _topics(settings)


def _topics(settings: Settings) -> Iterator[Finding]:
    found = admin.differences(settings)
    for difference in found:
        what, _, fix = difference.partition("; ")
        yield Finding(Area.TOPICS, Health.BAD, what, fix)
    try:
        drifts = drift.find(settings)
    except KafkaException as error:
        fix = "Allow DESCRIBE_CONFIGS on the topics; `rampmeter doctor --acls` names them."
        yield Finding(Area.TOPICS, Health.UNKNOWN, f"their properties cannot be read: {error.args[0].str()}", fix)
        return
    for one in drifts:
        yield Finding(Area.TOPICS, Health.BAD, str(one), "Run `rampmeter topics apply --configs`.")
    if not found and not drifts:
        yield ok(Area.TOPICS, f"all {len(catalog.topics(settings))} are as the settings want them")


def access(settings: Settings, process: Process, reply_patterns: Collection[str]) -> Iterator[Finding]:
    """Whether the user of these settings has the rights that the process needs.  Asks the broker, tries nothing."""
    lines = [line for line in acls.needed(settings, reply_patterns) if line.process == process and line.tenant is None]
    try:
        lacking = [*_lacking(_topic_rights(settings), lines, "topic"), *_lacking_groups(settings, lines)]
    except KafkaException as error:
        yield Finding(Area.ACCESS, Health.UNKNOWN, f"the broker does not tell rights: {error.args[0].str()}")
        return
    for what, operations in lacking[:_SHOWN]:
        fix = f"Grant it: `rampmeter doctor --acls` lists all that {process} needs."
        yield Finding(Area.ACCESS, Health.BAD, f"{process} lacks {', '.join(operations)} on {what}", fix)
    if len(lacking) > _SHOWN:
        yield Finding(Area.ACCESS, Health.BAD, f"and on {len(lacking) - _SHOWN} more")
    if not lacking:
        yield ok(Area.ACCESS, f"this user has all rights of {process}")


def offset_s(settings: Settings, clock: Clock) -> float | None:
    """By how much the broker's clock is ahead of ours; None when it does not say.

    The time comes back with the acknowledgement of a record that deletes a key of `control` that nothing was ever
    written under: whoever follows the topic passes over it.
    """
    told: list[tuple[float, float]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            told.append((clock.wall_s(), clients.written_s(message)))

    producer = clients.producer(settings, delivered_within_s=_TIMEOUT_S, linger_ms=0)
    for _ in range(2):  # the first has to find the partition's leader
        sent_s = clock.wall_s()
        producer.produce(settings.topic("control"), None, _PROBE_KEY, on_delivery=delivered)
        producer.flush(_TIMEOUT_S)
    if not told:
        return None
    back_s, written_s = told[-1]
    return written_s - (sent_s + back_s) / 2


def _topic_rights(settings: Settings) -> Mapping[str, set[str]]:
    names = [topic.name for topic in catalog.topics(settings)]
    asking = clients.admin(settings)  # named, since the calls die with it
    found = asking.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=_TIMEOUT_S
    )
    # `_topics` has said so of one that is not there.
    return _rights(found, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)


def _lacking_groups(settings: Settings, lines: Collection[Acl]) -> list[tuple[str, list[str]]]:
    names = [line.name for line in lines if line.resource == "group" and not line.is_prefix]
    asking = clients.admin(settings)
    found = asking.describe_consumer_groups(names, include_authorized_operations=True, request_timeout=_TIMEOUT_S)
    # Only of a group that somebody has joined the broker tells.
    rights = _rights(found, KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED)
    return _lacking(rights, lines, "group")


def _rights(found: Mapping[str, Future[Any]], absent: int, refused: int) -> dict[str, set[str]]:
    """What may be done, by name, without what the broker says is `absent`; nothing where it says `refused`."""
    rights: dict[str, set[str]] = {}
    for name, future in found.items():
        try:
            rights[name] = {operation.name for operation in future.result().authorized_operations or ()}
        except KafkaException as error:
            code = error.args[0].code()
            if code not in (absent, refused):
                raise
            if code == refused:
                rights[name] = set()
    return rights


def _lacking(rights: Mapping[str, set[str]], lines: Collection[Acl], resource: str) -> list[tuple[str, list[str]]]:
    found = []
    for name, has in rights.items():
        needs: set[str] = {
            operation
            for line in lines
            if line.resource == resource and (name.startswith(line.name) if line.is_prefix else name == line.name)
            for operation in line.operations
        }
        if needs - has:
            found.append((f"{resource} {name}", sorted(needs - has)))
    return found
