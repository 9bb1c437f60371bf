"""All checks in their order; one that cannot be made does not keep the others from it."""

from collections.abc import Collection, Iterator

from rampmeter.doctor import kafka, ours, redis
from rampmeter.doctor.findings import Area, Finding, Health
from streams.settings import StreamsSettings
from topics.catalog import Process
from topics.clock import Clock


def examine(settings: StreamsSettings, process: Process, clock: Clock) -> Iterator[Finding]:
    """Everything that `rampmeter doctor` looks at."""
    yield from ours.choices(settings)
    yield from ours.versions()
    broker = list(kafka.check(settings))
    yield from broker
    is_there = all(finding.health is not Health.DOWN for finding in broker)
    has_topics = is_there and not any(one.area is Area.TOPICS and one.health is Health.BAD for one in broker)
    if is_there:
        yield from kafka.access(settings, process, reply_patterns(settings))
    yield from redis.check(settings, clock)
    if has_topics:
        yield ours.clock("Kafka", kafka.offset_s(settings, clock))
    yield ours.clock("Redis", redis.offset_s(settings, clock))


def reply_patterns(settings: StreamsSettings) -> Collection[str]:
    """Complete names of the topics to which answers of single tenants may go, beside those of all."""
    return sorted({settings.topic(name) for names in settings.identity.reply_topics.values() for name in names})
