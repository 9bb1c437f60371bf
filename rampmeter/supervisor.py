"""Child processes of the local stack: start, watch, restart after a crash, stop in order.  Knows no Kafka."""

import contextlib
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from topics import process
from topics.clock import Clock
from topics.errors import ConfigError, DependencyDown
from topics.local_process import HOST, LocalProcess

POLL_S = 0.1
FIRST_PAUSE_S = 0.2
CALM_S = 30.0
"""A child that lived this long starts again at once, its earlier crashes forgotten."""
TAIL_LINES = 12
PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Program:
    """How one child is started."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    status_port: int

    @property
    def url(self) -> str:
        """Where its /metrics, /livez and /readyz are."""
        return f"http://{HOST}:{self.status_port}"


def python(name: str, module: str, env: Mapping[str, str], status_port: int) -> Program:
    """`python -m module` under this interpreter, with its own status port."""
    return Program(
        name, (sys.executable, "-m", module), {**env, "RAMPMETER_STATUS_PORT": str(status_port)}, status_port
    )


@dataclass(slots=True)
class _Child:
    """A program and its present process.  Written only under the supervisor's lock."""

    program: Program
    process: LocalProcess
    started_s: float
    crashes: int = 0
    restart_at_s: float | None = None


class Supervisor:
    """Keeps its children running until `stop`.

    Invariant: between `start` of a program and `stop`, it either runs or has a time at which it is started again.
    """

    def __init__(self, log_dir: Path, clock: Clock, restart_max_s: float, say: Callable[[str], None]) -> None:
        self._log_dir, self._clock, self._restart_max_s, self._say = log_dir, clock, restart_max_s, say
        self._children: dict[str, _Child] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._ready = False
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, programs: Iterable[Program]) -> None:
        """Start these too."""
        with self._lock:
            for program in programs:
                self._log(program.name).unlink(missing_ok=True)
                self._children[program.name] = _Child(program, self._spawn(program), self._clock.mono_s())

    def wait_ready(self, timeout_s: float) -> None:
        """Return once every /readyz says yes; raise when a child dies before, or at the timeout.  Then watch."""
        deadline_s = self._clock.mono_s() + timeout_s
        waiting = dict(self._children)
        while True:
            for name, child in list(waiting.items()):
                self._raise_if_dead(child)
                if _complaint(child.program.url) is None:
                    del waiting[name]
            if not waiting:
                break
            if self._clock.mono_s() > deadline_s:
                raise self._not_ready(waiting.values(), timeout_s)
            self._stopping.wait(POLL_S)
        if not self._watcher.is_alive():
            self._watcher.start()

    def pid(self, name: str) -> int:
        """The process id of a child."""
        with self._lock:
            return self._children[name].process.pid

    def names(self) -> list[str]:
        """Children by name, in the order of their start."""
        with self._lock:
            return list(self._children)

    def crashes(self) -> int:
        """How often a child ended by itself."""
        with self._lock:
            return sum(child.crashes for child in self._children.values())

    def kill(self, name: str) -> None:
        """Kill a child at once, as a crash would; it is started again."""
        with self._lock:
            self._children[name].process.kill()

    def stop(self, names: Iterable[str] | None = None, timeout_s: float = 20.0) -> None:
        """Ask these (all) to end, kill those that have not by `timeout_s`."""
        with self._lock:
            if names is None:
                self._stopping.set()
            chosen = [self._children.pop(name) for name in (list(self._children) if names is None else names)]
        for child in chosen:
            child.process.terminate()
        deadline_s = self._clock.mono_s() + timeout_s
        for child in chosen:
            if not child.process.stop(max(0.0, deadline_s - self._clock.mono_s())):
                self._say(
                    f"{child.program.name} did not end within {timeout_s:g} s and was killed; what it ran runs again"
                )

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_S):
            with self._lock:
                for child in self._children.values():
                    self._revive(child, self._clock.mono_s())

    def _revive(self, child: _Child, now_s: float) -> None:
        if child.process.is_running():
            return
        if child.restart_at_s is None:
            calm = now_s - child.started_s > CALM_S
            child.crashes += 1
            pause_s = 0.0 if calm else min(self._restart_max_s, FIRST_PAUSE_S * 2 ** (child.crashes - 1))
            child.restart_at_s = now_s + pause_s
            log = self._log(child.program.name)
            self._say(
                f"{child.program.name} ended with status {child.process.exit_code}; starting it again (log {log})"
            )
        if now_s >= child.restart_at_s:
            child.process, child.started_s, child.restart_at_s = self._spawn(child.program), now_s, None

    def _spawn(self, program: Program) -> LocalProcess:
        return LocalProcess(program.argv, self._log(program.name), env={**os.environ, **program.env})

    def _log(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def _raise_if_dead(self, child: _Child) -> None:
        status = child.process.exit_code
        if status is None:
            return
        name, log = child.program.name, self._log(child.program.name)
        tail = _tail(log)
        if status == process.EXIT_CONFIG:
            raise ConfigError([f"{name}: {line.removeprefix('configuration: ')}" for line in tail])
        raise DependencyDown(
            f"{name} ended with status {status} while it started", f"log {log}", "It said:\n  " + "\n  ".join(tail)
        )

    def _not_ready(self, children: Iterable[_Child], timeout_s: float) -> DependencyDown:
        reasons = [f"{child.program.name}: {_complaint(child.program.url)}" for child in children]
        return DependencyDown(
            f"not ready within {timeout_s:g} s: {'; '.join(reasons)}",
            f"logs in {self._log_dir}",
            "Read the logs, or raise RAMPMETER_STACK__READY_TIMEOUT_S on a slow machine.",
        )


def _complaint(url: str) -> str | None:
    """What /readyz complains about; None when ready."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=PROBE_TIMEOUT_S):  # noqa: S310 - our own loopback URL
            return None
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return error.read().decode("utf-8", "replace").strip()
    except OSError:
        return "does not answer yet"


def _tail(path: Path) -> list[str]:
    lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    return lines[-TAIL_LINES:] or ["(nothing)"]
