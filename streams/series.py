"""Begins the series whose labels are closed lists at zero, so that a first event is a rise and not an appearance."""

from collections.abc import Iterable
from itertools import product
from typing import get_args

from prometheus_client import Counter, Gauge

from streams import metrics
from streams.policy import control, degrade, identity
from streams.policy.placement import Case
from streams.settings import StreamsSettings
from topics import interfaces
from topics.outcomes import Reason
from topics.records import ControlAction, Length, Priority

WAITS = (
    Reason.BUDGET_GLOBAL, Reason.BUDGET_POOL, Reason.BUDGET_TENANT, Reason.BUDGET_CLASS, Reason.BUDGET_UNAVAILABLE,
    Reason.FAIR_SHARE, Reason.LANE_WAIT, Reason.PAUSED,
)  # fmt: skip
"""Why priced work waits, in memory or in a delay topic, or is refused in the end."""
REFUSALS = (*WAITS, Reason.DEADLINE_PASSED, Reason.DEADLINE_UNREACHABLE, Reason.CANCELLED, Reason.CONTEXT_LENGTH)
UNPRICED = (
    Reason.UNDECODABLE, Reason.EMPTY_VALUE, Reason.WRONG_SHAPE, Reason.BAD_HEADER, Reason.UNKNOWN_MODEL,
    Reason.UNKNOWN_PRIORITY, Reason.MAX_TOKENS, Reason.CONTEXT_LENGTH, Reason.BODY_TOO_LARGE, Reason.BAD_IDENTITY,
    Reason.REPLY_TOPIC_FORBIDDEN, Reason.REPLY_TOPIC_MISSING, Reason.REPLY_PARTITION_MISSING, Reason.DEADLINE_PASSED,
)  # fmt: skip
UNREADABLE = (Reason.UNDECODABLE, Reason.EMPTY_VALUE, Reason.WRONG_SHAPE, Reason.REPLY_TOPIC_MISSING)
_VERDICTS = {"admit": (Reason.NONE,), "hold": WAITS, "defer": WAITS, "reject": REFUSALS}


def begin(settings: StreamsSettings) -> None:
    """Make them; calling it again changes nothing."""
    for length in Length:
        metrics.OUTPUT_ERROR.labels(length)
        metrics.COST_ERROR.labels(length)
        for priority in Priority:
            metrics.RECEIVED.labels(priority, length)
            for verdict, reasons in _VERDICTS.items():
                for reason in reasons:
                    metrics.VERDICTS.labels(verdict, reason, priority, length)
    for priority, wait_s in settings.streams.max_wait_s.items():
        metrics.MAX_WAIT.labels(priority).set(wait_s)
    for reason in UNPRICED:
        metrics.VERDICTS.labels("reject", reason, "", "")
    for reason in UNREADABLE:
        metrics.DEAD_LETTERS.labels(reason)
    for pool in settings.pools:
        for family in (metrics.PROMOTED, metrics.ADMITTED_UNITS, metrics.SPENT_UNITS, metrics.KV_TOKEN_S):
            family.labels(pool)
        metrics.OPEN_UNITS.labels(pool)
    _begin_closed()


def _begin_closed() -> None:
    closed: list[tuple[Counter | Gauge, Iterable[str]]] = [
        (metrics.CORRECTED, ("length", "priority")),
        (metrics.BY_INTERFACE, interfaces.ALL),
        (metrics.PLACEMENTS, Case),
        (metrics.SETTLED, ("settled", "unknown", "partial")),
        (metrics.IDENTITY_REFUSED, identity.Why),
        (metrics.PAUSED, ("tenant", "pool", "class")),
        (metrics.REBUILDS, ("restored", "failed")),
        (metrics.RECALLED, ("decided", "settled")),
    ]
    for family, values in closed:
        for value in values:
            family.labels(value)
    for mode, verdict in product(get_args(degrade.Mode), ("admit", "defer", "reject")):
        metrics.DEGRADED_DECISIONS.labels(mode, verdict)
    for action, fate in product(ControlAction, get_args(control.Fate)):
        metrics.CONTROL_ORDERS.labels(action, fate)
