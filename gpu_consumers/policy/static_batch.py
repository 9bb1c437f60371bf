"""Batches for an engine that takes only whole ones, each of one model, one after the other.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from topics.records import Tier


@dataclass(frozen=True, slots=True)
class Rules:
    """When a batch is complete."""

    size: int
    window_s: Mapping[Tier, float]
    """Longest wait of a lane's head for others to go with, by tier."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Requests of one model; `heads` are the oldest of its lanes, each with the time since when it is here."""

    count: int
    heads: tuple[tuple[Tier, float], ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing goes now; look again at `until_s`, or when something changes."""

    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A batch of one of these models goes now; which one, the order of the lanes decides."""

    models: frozenset[str]


def plan(waiting: Mapping[str, Waiting], rules: Rules, now_s: float, *, is_free: bool) -> Wait | Dispatch:
    """Wait while the engine has a batch, and then until one is full or its first request has waited its window."""
    if not is_free or not waiting:
        return Wait()
    due_s = {model: _due_s(of_model, rules, now_s) for model, of_model in waiting.items()}
    due = frozenset(model for model, at_s in due_s.items() if at_s <= now_s)
    return Dispatch(due) if due else Wait(min(due_s.values()))


def _due_s(waiting: Waiting, rules: Rules, now_s: float) -> float:
    if waiting.count >= rules.size:
        return now_s
    return min(since_s + rules.window_s[tier] for tier, since_s in waiting.heads)
