"""Consumers as children of this process: started, replaced after a crash, drained before they go.

No child outlives the autoscaler: each is told to drain when this process ends in whatever way.
"""

import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Literal

import structlog

from autoscaler.target import Unstarted
from topics import local_process
from topics.clock import Clock
from topics.local_process import LocalProcess

log = structlog.get_logger()

COMMAND = (sys.executable, "-m", "gpu_consumers")
CALM_S = 30.0
"""A child that lived this long has not crashed at its start: the backoff begins anew."""
CLOSE_POLL_S = 0.05

Exit = Literal["drained", "crashed", "killed"]


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Times of the target, and where the logs go."""

    log_dir: Path
    grace_s: float
    restart_backoff_s: float
    restart_backoff_max_s: float


@dataclass(slots=True)
class _Child:
    name: str
    process: LocalProcess
    started_s: float
    drain_until_s: float | None = None


@dataclass(slots=True)
class _Crew:
    """A pool's children.  Invariant: `running` and `draining` share no child; oldest first."""

    env: Mapping[str, str]
    wanted: int = 0
    running: list[_Child] = field(default_factory=list)
    draining: list[_Child] = field(default_factory=list)
    crashes_in_row: int = 0
    start_not_before_s: float = 0.0


class ProcessTarget:
    """Children by pool.  For one thread."""

    def __init__(
        self,
        envs: Mapping[str, Mapping[str, str]],
        limits: ProcessLimits,
        clock: Clock,
        on_exit: Callable[[str, Exit], None],
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        """`envs` holds the whole environment of each pool's children; `on_exit` is told the pool and how it ended."""
        self._limits, self._clock, self._on_exit, self._command = limits, clock, on_exit, command
        self._crews = {pool: _Crew(env) for pool, env in envs.items()}
        self._series = secrets.token_hex(2)  # a consumer's id must never come back: claims are by id
        self._started = 0
        limits.log_dir.mkdir(parents=True, exist_ok=True)

    def replicas(self, pool: str) -> int:
        """The count last asked for."""
        return self._crews[pool].wanted

    def problem(self, pool: str) -> str | None:  # noqa: ARG002 - the protocol's
        """Children that cannot start are started again."""
        return None

    def unstarted(self, pool: str) -> Unstarted | None:
        """Those that wait for their start after a crash."""
        crew = self._crews[pool]
        return Unstarted(max(0, crew.wanted - len(crew.running)), 0)

    def scale(self, pool: str, replicas: int) -> None:
        """Reap, start and drain until the pool has that many; the youngest go first."""
        crew = self._crews[pool]
        crew.wanted = replicas
        self._reap(pool, crew)
        while len(crew.running) > replicas:
            self._drain(crew, crew.running.pop())
        while len(crew.running) < replicas and self._clock.mono_s() >= crew.start_not_before_s:
            crew.running.append(self._start(pool, crew))

    def close(self) -> None:
        """Drain all children at once; kill those that have not ended within the grace."""
        for crew in self._crews.values():
            crew.wanted = 0
            while crew.running:
                self._drain(crew, crew.running.pop())
        give_up_s = self._clock.mono_s() + self._limits.grace_s + local_process.KILL_WAIT_S
        while any(crew.draining for crew in self._crews.values()) and self._clock.mono_s() < give_up_s:
            sleep(CLOSE_POLL_S)
            for pool, crew in self._crews.items():
                self._reap(pool, crew)

    def _start(self, pool: str, crew: _Crew) -> _Child:
        self._started += 1
        name, port = f"{pool}-{self._series}-{self._started}", _free_port()
        env = {
            **crew.env,
            "RAMPMETER_GPU__POOL": pool,
            "RAMPMETER_GPU__CONSUMER_ID": name,
            "RAMPMETER_STATUS_PORT": str(port),
        }
        child = _Child(
            name,
            LocalProcess(self._command, self._limits.log_dir / f"{name}.log", env=env),
            self._clock.mono_s(),
        )
        log.info("consumer_started", consumer=name, pid=child.process.pid, status_port=port)
        return child

    def _drain(self, crew: _Crew, child: _Child) -> None:
        child.process.terminate()
        child.drain_until_s = self._clock.mono_s() + self._limits.grace_s
        crew.draining.append(child)
        log.info("consumer_draining", consumer=child.name)

    def _reap(self, pool: str, crew: _Crew) -> None:
        now_s = self._clock.mono_s()
        for child in [child for child in crew.draining if not child.process.is_running()]:
            crew.draining.remove(child)
            self._say_ended(pool, child, "drained" if child.process.exit_code == 0 else "killed")
        for child in crew.draining:
            if child.drain_until_s is not None and now_s > child.drain_until_s:
                log.error("consumer_killed", consumer=child.name, after_s=self._limits.grace_s)
                child.process.kill()
                child.drain_until_s = None
        for child in [child for child in crew.running if not child.process.is_running()]:
            crew.running.remove(child)
            self._back_off(crew, child, now_s)
            self._say_ended(pool, child, "crashed")

    def _back_off(self, crew: _Crew, child: _Child, now_s: float) -> None:
        crew.crashes_in_row = 1 if now_s - child.started_s > CALM_S else crew.crashes_in_row + 1
        pause_s = self._limits.restart_backoff_s * 2 ** min(crew.crashes_in_row - 1, 16)
        crew.start_not_before_s = now_s + min(pause_s, self._limits.restart_backoff_max_s)

    def _say_ended(self, pool: str, child: _Child, how: Exit) -> None:
        say = log.info if how == "drained" else log.warning
        say("consumer_ended", consumer=child.name, how=how, exit_status=child.process.exit_code)
        self._on_exit(pool, how)


def _free_port() -> int:
    """A port that is free now; a child that finds it taken after all ends and is started again with another."""
    with socket.socket() as probe:
        probe.bind((local_process.HOST, 0))
        return int(probe.getsockname()[1])
