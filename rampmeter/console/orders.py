"""Orders from the page: read, checked and given to `rampmeter.control` as the commands do."""

from typing import Literal

import msgspec

from rampmeter import control, draining
from rampmeter.console.settings import ConsoleSettings
from topics.clock import Clock
from topics.records import Control, ControlAction, ControlKind

MAX_BODY_BYTES = 4096


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What a page posts.  Limits are not changed from here."""

    action: Literal["cancel", "pause", "resume", "drain"]
    kind: Literal["request", "tenant", "pool", "class", "consumer"]
    name: str
    tenant: str | None = None
    """Of a cancel: only if the request is this tenant's."""


_ASKED = msgspec.json.Decoder(Asked)


def read(body: bytes) -> Asked:
    """Raises OrderRefused for what is no order; names nothing of it."""
    try:
        return _ASKED.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise control.OrderRefused("an order is {action, kind, name}, of the words that the page uses") from None


def give(settings: ConsoleSettings, clock: Clock, asked: Asked) -> list[Control]:
    """Send it, to drain a pool one to each of its consumers; raises OrderRefused, NoConsumer or DependencyDown.

    Blocks until the broker has them.
    """
    action, kind, names = ControlAction(asked.action), ControlKind(asked.kind), [asked.name]
    if action is ControlAction.DRAIN:
        kind, names = ControlKind.CONSUMER, _consumers(settings, clock, asked)
    change = control.Change(tenant=asked.tenant)
    orders = [control.make_order(settings, clock, action, (kind, name), change) for name in names]
    for order in orders:
        control.send_order(settings, order)
    return orders


def _consumers(settings: ConsoleSettings, clock: Clock, asked: Asked) -> list[str]:
    is_pool = asked.name in settings.pools
    if (asked.kind == "pool") is not is_pool or asked.kind not in ("pool", "consumer"):
        raise control.OrderRefused(f"there is no {asked.kind} {asked.name!r} to drain")
    return draining.targets(settings, asked.name, draining.reports(settings), clock.wall_s())
