"""What a check found, and the command's status.  Pure."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from topics import process


class Area(StrEnum):
    """What is looked at."""

    SETTINGS = "settings"
    VERSIONS = "versions"
    KAFKA = "kafka"
    TOPICS = "topics"
    ACCESS = "access"
    REDIS = "redis"
    CLOCKS = "clocks"


class Health(StrEnum):
    """How it is; `unknown` is what could not be asked."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    DOWN = "down"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True):
    """One sentence about one thing, and what to do where something is to be done."""

    area: Area
    health: Health
    what: str
    fix: str | None = None


def ok(area: Area, what: str) -> Finding:
    """Nothing to do."""
    return Finding(area, Health.OK, what)


def status(found: Iterable[Finding]) -> int:
    """69 when something does not answer, 78 for settings and topics, 1 for anything else that is wrong, else 0."""
    wrong = [one for one in found if one.health in (Health.BAD, Health.DOWN)]
    if any(one.health is Health.DOWN for one in wrong):
        return process.EXIT_UNAVAILABLE
    if any(one.area in (Area.SETTINGS, Area.TOPICS) for one in wrong):
        return process.EXIT_CONFIG
    return process.EXIT_FINDING if wrong else 0
