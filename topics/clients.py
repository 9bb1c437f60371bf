"""Kafka and Redis clients from the shared settings.  librdkafka's names and milliseconds exist only here."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import redis
import redis.asyncio
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from topics.errors import DependencyDown
from topics.settings import Settings, redacted

log = logging.getLogger("librdkafka")
log.setLevel(logging.CRITICAL)  # one line per failed connection attempt is noise: callers report what matters

_CONSUMER_ONLY = ("group.instance.id", "client.rack", "queued.", "fetch.", "session.timeout", "heartbeat.")


def properties(settings: Settings, **extra: str | int | bool | Callable[..., Any]) -> dict[str, Any]:
    """The user's client properties, then ours; keyword `a_b` is the property `a.b`; callbacks keep their name."""
    ours = {name if callable(value) else name.replace("_", "."): value for name, value in extra.items()}
    return {**settings.kafka, **ours}


def producer(settings: Settings, **extra: str | int | bool) -> Producer:
    """A producer that loses and reorders nothing; it gives up on a record after the delivery timeout."""
    defaults: dict[str, str | int | bool] = {
        "enable_idempotence": True,
        "linger_ms": 1,
        "compression_type": "lz4",
        "delivery_timeout_ms": 120_000,
        "message_max_bytes": settings.topics.max_record_bytes + 100_000,
    }
    ours = {k: v for k, v in properties(settings).items() if not k.startswith(_CONSUMER_ONLY)}
    return Producer(
        {**ours, **properties(settings.model_copy(update={"kafka": {}}), **{**defaults, **extra})}, logger=log
    )


def consumer(settings: Settings, group: str, **extra: str | int | bool | Callable[..., Any]) -> Consumer:
    """A consumer that commits only when told to, and reads from the start where nothing is committed."""
    defaults: dict[str, str | int | bool | Callable[..., Any]] = {
        "group_id": group,
        "enable_auto_commit": False,
        "enable_auto_offset_store": False,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
        "isolation_level": "read_committed",
        "fetch_wait_max_ms": 100,
    }
    return Consumer(properties(settings, **{**defaults, **extra}), logger=log)


def reader(settings: Settings) -> Consumer:
    """A consumer outside any group's protocol: for manual assignment and look-ups; it never commits."""
    return consumer(settings, settings.topic("rampmeter-reader"), enable_partition_eof=True, fetch_wait_max_ms=50)


def admin(settings: Settings) -> AdminClient:
    """An admin client."""
    ours = {k: v for k, v in properties(settings).items() if not k.startswith(_CONSUMER_ONLY)}
    return AdminClient(ours, logger=log)


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
