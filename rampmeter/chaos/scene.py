"""What the acts work with: the stack, its clock, and requests of a tenant that nobody else is."""

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import Producer

from rampmeter import control
from rampmeter.chaos.site import Site
from rampmeter.control import Change
from topics import catalog
from topics.clock import Clock
from topics.records import ControlAction, ControlKind, Length, Priority


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind."""

    max_tokens: int
    priority: Priority = Priority.MEDIUM
    patience_s: float = 15.0
    """Before its deadline: what an incident leaves behind is gone by then."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body."""


@dataclass(slots=True)
class Scene:
    """One incident's.  Single-threaded; `ends_s` is when it ends at the latest, on the monotonic clock."""

    site: Site
    clock: Clock
    tenant: str
    producer: Producer
    ends_s: float
    sent: int = 0

    def send(self, kind: Kind) -> str:
        """Send one request; its id."""
        self.sent += 1
        identity = self._identity(self.sent)
        body = {"messages": [{"role": "user", "content": "chaos"}], "max_tokens": kind.max_tokens, **kind.extra}
        self._produce(
            catalog.landing(self.site.settings, kind.priority, Length.SHORT),
            msgspec.json.encode(body),
            {"rampmeter_id": identity, "rampmeter_deadline_s": f"{self.clock.wall_s() + kind.patience_s:.3f}"},
        )
        return identity

    def send_garbage(self) -> None:
        """Send a record that nobody can read."""
        self._produce(catalog.landing(self.site.settings, Priority.MEDIUM, Length.SHORT), b"chaos", {})

    def cancel(self, number: int) -> None:
        """Cancel the request that was sent as this one, from 1 on; returns before the broker has the order."""
        settings = self.site.settings
        order = control.cancel_order(settings, self.clock, self._identity(number), None)
        letter = control.letter_of(settings, order)
        self.producer.produce(letter.topic, letter.value, letter.key)

    def limit(self, change: Change) -> None:
        """Change the tenant's budget; a change that says nothing gives it back to the settings."""
        settings, target = self.site.settings, (ControlKind.TENANT, self.tenant)
        control.send_order(settings, control.make_order(settings, self.clock, ControlAction.LIMITS, target, change))

    def _identity(self, number: int) -> str:
        return f"{self.tenant}-{number}"

    def _produce(self, topic: str, value: bytes, headers: Mapping[str, str]) -> None:
        named: list[tuple[str, str | bytes | None]] = [(name, text.encode()) for name, text in headers.items()]
        # Where the broker stands still there is no room, and that is the incident.
        with contextlib.suppress(BufferError):
            self.producer.produce(topic, value, self.tenant.encode(), headers=named)
        self.producer.poll(0)


def stop(pid: int) -> None:
    """Let a process stand still."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    """End that."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
