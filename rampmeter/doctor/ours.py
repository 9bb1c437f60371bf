"""Our own side: settings, versions and clocks."""

import platform
from collections.abc import Iterator
from importlib import metadata

import confluent_kafka

from rampmeter import checks
from rampmeter.doctor.findings import Area, Finding, Health, ok
from streams.settings import StreamsSettings

OFF_S = 0.5
WRONG_S = 5.0
"""By which clocks may differ where answers are looked up; see `topics.answers`."""
_LOCAL = ("127.", "localhost", "[::1]")


def settings_of_all() -> Iterator[Finding]:
    """Whether the settings of every process are valid."""
    problems = checks.config_problems()
    for problem in problems:
        yield Finding(Area.SETTINGS, Health.BAD, problem, "`rampmeter config print` shows names and values.")
    if not problems:
        yield ok(Area.SETTINGS, "those of all processes are valid")


def choices(settings: StreamsSettings) -> Iterator[Finding]:
    """What is valid and yet not meant for production."""
    if settings.identity.mode == "trusted":
        fix = "Set RAMPMETER_IDENTITY__MODE to topic or signed where tenants do not trust each other."
        yield Finding(Area.SETTINGS, Health.WARN, "every producer's word on tenant and class is believed", fix)
    servers = [server.strip() for server in settings.kafka["bootstrap.servers"].split(",")]
    protocol = settings.kafka.get("security.protocol", "PLAINTEXT").upper()
    if not protocol.endswith("SSL") and not all(server.startswith(_LOCAL) for server in servers):
        fix = "Set RAMPMETER_KAFKA__SECURITY_PROTOCOL=SASL_SSL and the SASL properties."
        yield Finding(Area.SETTINGS, Health.WARN, f"prompts travel to Kafka by {protocol}, unencrypted", fix)


def versions() -> Iterator[Finding]:
    """What runs here."""
    named = ", ".join(f"{name} {metadata.version(name)}" for name in ("rampmeter", "confluent-kafka", "redis"))
    librdkafka = confluent_kafka.libversion()[0]
    yield ok(Area.VERSIONS, f"{named}, librdkafka {librdkafka}, Python {platform.python_version()}")


def clock(whose: str, ahead_s: float | None) -> Finding:
    """What a difference to our own clock means."""
    if ahead_s is None:
        return Finding(Area.CLOCKS, Health.UNKNOWN, f"{whose} does not tell its time")
    side = "ahead of" if ahead_s > 0 else "behind"
    said = f"{whose} is {abs(ahead_s):.3f} s {side} this machine"
    if abs(ahead_s) <= OFF_S:
        return ok(Area.CLOCKS, said)
    fix = "Let NTP or chrony set all clocks: deadlines, ages and look-ups of earlier answers go by them."
    return Finding(Area.CLOCKS, Health.BAD if abs(ahead_s) > WRONG_S else Health.WARN, said, fix)
