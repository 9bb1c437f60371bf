"""Which orders on the topic `control` mean something: whoever follows it judges alike.  Pure."""

import math
from collections.abc import Container

from topics import codec
from topics.records import Control, ControlAction, ControlKind, Priority

ALL = "all"
"""Name of the global budget."""
_KINDS = {
    ControlAction.CANCEL: {ControlKind.REQUEST},
    ControlAction.PAUSE: {ControlKind.TENANT, ControlKind.POOL, ControlKind.CLASS},
    ControlAction.RESUME: {ControlKind.TENANT, ControlKind.POOL, ControlKind.CLASS},
    ControlAction.LIMITS: {ControlKind.TENANT, ControlKind.POOL, ControlKind.CLASS, ControlKind.GLOBAL},
    ControlAction.DRAIN: {ControlKind.CONSUMER},
}
PASSING = {ControlAction.CANCEL, ControlAction.DRAIN}
"""Orders about what will soon be gone: their records are deleted after a while."""


def pause_key(kind: ControlKind, name: str) -> str:
    """Key of orders to pause and to resume."""
    return f"paused:{kind}:{name}"


def limits_key(kind: ControlKind, name: str) -> str:
    """Key of orders that change a budget."""
    return f"limits:{kind}:{name}"


def key_of(order: Control) -> str:
    """The key of an order's record: orders that replace each other share one, all others must not."""
    match order.action:
        case ControlAction.CANCEL:
            return f"{order.kind}:{order.name}"
        case ControlAction.PAUSE | ControlAction.RESUME:
            return pause_key(order.kind, order.name)
        case ControlAction.LIMITS:
            return limits_key(order.kind, order.name)
        case ControlAction.DRAIN:
            return f"drain:{order.kind}:{order.name}"


def fault(order: Control, key: str, pools: Container[str]) -> str | None:
    """What is wrong with an order, if anything; under another key, compaction could forget an order that holds."""
    if key != key_of(order):
        return "wrong_key"
    if order.kind not in _KINDS[order.action]:
        return "wrong_kind"
    names: dict[ControlKind, Container[str]] = {
        ControlKind.POOL: pools,
        ControlKind.CLASS: {str(priority) for priority in Priority},
        ControlKind.GLOBAL: (ALL,),
    }
    if not codec.NAME.fullmatch(order.name) or order.name not in names.get(order.kind, (order.name,)):
        return "unknown_name"
    numbers = (order.refill_units_per_s, order.burst_s)
    if any(number is not None and not (math.isfinite(number) and number > 0) for number in numbers):
        return "bad_limit"
    return None
