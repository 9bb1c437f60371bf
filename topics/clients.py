"""Kafka and Redis clients from the shared settings.  librdkafka's names and milliseconds exist only here."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import redis
import redis.asyncio
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from topics.errors import ConfigError, DependencyDown
from topics.settings import Settings, redacted

log = logging.getLogger("librdkafka")
log.setLevel(logging.CRITICAL)  # one line per failed connection attempt is noise: callers report what matters

_CONSUMER_ONLY = ("group.instance.id", "client.rack", "queued.", "fetch.", "session.timeout", "heartbeat.")


_MS = 1000
_SESSION_MS = 45_000
"""The client's own default."""
C = TypeVar("C")
Property = str | int | bool | Callable[..., Any]


def properties(settings: Settings, defaults: Mapping[str, Property], **ours: Property) -> dict[str, Any]:
    """Client properties: `defaults` under the user's under `ours`.  `a_b` is the property `a.b`, but for callbacks."""
    return {**_dotted(defaults), **settings.kafka, **_dotted(ours)}


def _dotted(named: Mapping[str, Property]) -> dict[str, Property]:
    return {name if callable(value) else name.replace("_", "."): value for name, value in named.items()}


def _without_consumer_only(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if not name.startswith(_CONSUMER_ONLY)}


def _made(kind: Callable[..., C], named: dict[str, Any]) -> C:
    """Build a client; a property that librdkafka does not know or take is a fault of the settings."""
    try:
        return kind(named, logger=log)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._INVALID_ARG:  # noqa: SLF001 - the library's public constant
            raise ConfigError([f"RAMPMETER_KAFKA__X: {error.args[0].str()}"]) from error
        raise


def producer(settings: Settings, *, delivered_within_s: float | None = None, **ours: Property) -> Producer:
    """A producer that loses and reorders nothing; it gives up on a record after the delivery timeout."""
    defaults: dict[str, Property] = {"linger_ms": 1, "compression_type": "lz4", "delivery_timeout_ms": 120_000}
    must: dict[str, Property] = {
        "enable_idempotence": True,
        "message_max_bytes": settings.topics.max_record_bytes + 100_000,
    }
    if delivered_within_s is not None:
        must["delivery_timeout_ms"] = int(delivered_within_s * _MS)
    return _made(Producer, _without_consumer_only(properties(settings, defaults, **{**must, **ours})))


def consumer(settings: Settings, group: str, **ours: Property) -> Consumer:
    """A consumer that commits only when told to, and reads from the start where nothing is committed."""
    must: dict[str, Property] = {
        "group_id": group,
        "enable_auto_commit": False,
        "enable_auto_offset_store": False,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
        "isolation_level": "read_committed",
    }
    named = properties(settings, {"fetch_wait_max_ms": 100}, **{**must, **ours})
    if named.get("group.protocol") != "consumer":
        # A poll interval below it would be refused, though one that joins no group has no use for either.
        named.setdefault("session.timeout.ms", min(_SESSION_MS, int(named.get("max.poll.interval.ms", _SESSION_MS))))
    return _made(Consumer, named)


def onlooker(settings: Settings, group: str, **ours: Property) -> Consumer:
    """A consumer that asks for a group's offsets and those of logs for as long as it lives, and never joins.

    Of a topic that nobody has subscribed to librdkafka keeps for 15 min what it was told by a broker that was just
    coming back: that it has no partitions.
    """
    return consumer(settings, group, topic_metadata_refresh_interval_ms=5_000, metadata_max_age_ms=10_000, **ours)


def share_consumer(settings: Settings, group: str, **ours: Property) -> ShareConsumer:
    """A member of a share group that acknowledges each record itself."""
    must: dict[str, Property] = {"group_id": group, "share_acknowledgement_mode": "explicit"}
    named = properties(settings, {"fetch_wait_max_ms": 100}, **{**must, **ours})
    return _made(ShareConsumer, {name: value for name, value in named.items() if name != "group.instance.id"})


def configure_group(settings: Settings, group: str, config: Mapping[str, str]) -> None:
    """Set properties of a group that live in the broker; raises KafkaException when it does not take them."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    asking = admin(settings)  # named, since the call dies with it
    changes = [ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)]
    for done in asking.incremental_alter_configs(changes).values():
        done.result()


def reader(settings: Settings) -> Consumer:
    """A consumer outside any group's protocol: for manual assignment and look-ups; it never commits."""
    return consumer(settings, settings.topic("rampmeter-reader"), enable_partition_eof=True, fetch_wait_max_ms=50)


def is_fatal(error: KafkaError) -> bool:
    """Whether the client has given up for good.  What `poll` and `produce` tell carries only the code, not the mark."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - the library's public constant


def at(topic: str, partition: int, wall_s: float) -> TopicPartition:
    """A partition at a time, for `Consumer.offsets_for_times`; no time is before 1970."""
    return TopicPartition(topic, partition, int(max(0.0, wall_s) * _MS))


def written_s(message: Message) -> float:
    """When a record was written, by its producer's or its broker's clock, as the topic takes it."""
    return message.timestamp()[1] / _MS


def admin(settings: Settings) -> AdminClient:
    """An admin client."""
    return _made(AdminClient, _without_consumer_only(properties(settings, {})))


def redis_sync(settings: Settings) -> redis.Redis:
    """A blocking Redis client; each call ends within the timeout."""
    timeout_s = settings.redis.timeout_s
    return redis.Redis.from_url(
        settings.redis.url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 1)
    )


def redis_async(settings: Settings) -> redis.asyncio.Redis:
    """An asyncio Redis client; bounded by the socket's timeout and never by cancellation, which can mix up replies."""
    timeout_s = settings.redis.timeout_s
    return redis.asyncio.Redis.from_url(settings.redis.url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)


def is_broker_there(client: Producer, timeout_s: float) -> bool:
    """Whether a broker answers this client; blocks, from any thread."""
    try:
        client.list_topics(timeout=timeout_s)
    except KafkaException:
        return False
    return True


def require_kafka(settings: Settings, timeout_s: float = 10.0) -> None:
    """Raise DependencyDown unless a broker answers."""
    servers = settings.kafka.get("bootstrap.servers", "")
    try:
        admin(settings).list_topics(timeout=timeout_s)
    except KafkaException as error:
        what = f"Kafka does not answer within {timeout_s:g} s: {error.args[0].str()}"
        fix = "Start the broker, or set RAMPMETER_KAFKA__BOOTSTRAP_SERVERS and the security properties."
        raise DependencyDown(what, servers, fix) from error


def require_redis(settings: Settings) -> None:
    """Raise DependencyDown unless Redis answers."""
    with redis_down_as_dependency(settings), contextlib.closing(redis_sync(settings)) as client:
        client.ping()


@contextlib.contextmanager
def redis_down_as_dependency(settings: Settings) -> Iterator[None]:
    """Turn a Redis failure into DependencyDown with what to do."""
    try:
        yield
    except RedisError as error:
        where = str(redacted(settings)["redis"]["url"])
        raise DependencyDown(
            f"Redis does not answer: {error}", where, "Start it, or set RAMPMETER_REDIS__URL."
        ) from error
