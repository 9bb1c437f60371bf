"""Roles: which lanes a consumer serves, and when one of a single length borrows the other.  Pure.

A consumer always serves the lanes of its own length.  It borrows the other ones when they have no owner, or when it has
room and they wait; it lets them go when its own length needs the engine and others serve them.  Each change is a
rebalance: a reason must last, and changes keep their distance.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from gpu_consumers.policy.selection import LANES, TIERS, Lane
from topics.records import Length, Role


class Reason(StrEnum):
    """Why lanes are borrowed or let go."""

    UNSERVED = "unserved"
    HAS_ROOM = "has_room"
    PRESSED = "pressed"


@dataclass(frozen=True, slots=True)
class Rules:
    """How eagerly lanes change hands."""

    after_s: float = 5.0
    """How long a reason must last.  Too small: a rebalance looks like a missing owner.  Too large: lanes stand."""
    apart_s: float = 15.0
    """Least time between two changes, unless a lane has no owner.  Too small: rebalances.  Too large: idle engines."""
    idle_ratio: float = 0.5
    """Share of the engine that its own length takes at most when it borrows."""
    pressed_ratio: float = 0.9
    """And at least when it lets go.  Too near to the other: it flaps."""


class Peer(NamedTuple):
    """Another live consumer of the pool."""

    role: Role
    lanes: Mapping[Lane, Collection[int]]
    """Partitions that it owns."""
    has_waiting: bool
    """Work waits in it for room."""
    known_s: float
    """For how long it has been seen."""
    takes_work: bool = True
    """It begins what it is given: it is neither ill nor about to end."""


class Look(NamedTuple):
    """What is known at one moment."""

    peers: Collection[Peer] | None
    """None while the telemetry of the pool cannot be read."""
    own_ratio: float
    """Share of the engine that its own length takes, waiting work included."""
    partitions: int
    """Of each lane."""


@dataclass(frozen=True, slots=True)
class State:
    """Whether the other length is borrowed, since when, and why that is about to change."""

    changed_s: float
    borrows: bool = False
    reason: Reason | None = None
    since_s: float = 0.0


def serves(role: Role, *, borrows: bool) -> tuple[Lane, ...]:
    """The lanes of a consumer."""
    if role is Role.GENERAL or borrows:
        return LANES
    return tuple(lane for lane in LANES if lane.length == role.value)


def decide(role: Role, state: State, look: Look, rules: Rules, now_s: float) -> State:
    """Change hands once a reason has lasted, else note it; what is unknown is no reason."""
    reason = None if look.peers is None else _reason(role, state, look, look.peers, rules)
    since_s = state.since_s if reason is state.reason else now_s
    is_apart = reason is Reason.UNSERVED or now_s - state.changed_s >= rules.apart_s
    if reason is not None and is_apart and now_s - since_s >= rules.after_s:
        return State(now_s, borrows=not state.borrows, reason=reason, since_s=now_s)
    return replace(state, reason=reason, since_s=since_s)


def _reason(role: Role, state: State, look: Look, peers: Collection[Peer], rules: Rules) -> Reason | None:
    other = Length.LONG if role is Role.SHORT else Length.SHORT
    others = [peer for peer in peers if peer.role in (Role.GENERAL, other.value)]
    if not state.borrows and not is_served(other, peers, look.partitions):
        return Reason.UNSERVED
    if not state.borrows and look.own_ratio <= rules.idle_ratio and any(peer.has_waiting for peer in others):
        return Reason.HAS_ROOM
    if state.borrows and look.own_ratio >= rules.pressed_ratio and _would_serve(others, other, rules):
        return Reason.PRESSED
    return None


def is_served(length: Length, peers: Collection[Peer], partitions: int) -> bool:
    """Whether each partition of each lane of this length has an owner that takes work."""
    owners = [peer for peer in peers if peer.takes_work]
    return all(
        set().union(*(peer.lanes.get(Lane(tier, length), ()) for peer in owners)) >= set(range(partitions))
        for tier in TIERS
    )


def _would_serve(others: Collection[Peer], length: Length, rules: Rules) -> bool:
    """Whether those who are there for this length would serve all of it alone.

    One that owns nothing yet must have been there for a while: it may still be joining, or find no partition free.
    """
    joined = [p for p in others if p.known_s >= rules.apart_s or any(lane.length is length for lane in p.lanes)]
    return bool(joined) and all(peer.takes_work for peer in joined)
