"""A server that belongs to this process: its child, its port and its data directory.  Knows no protocol."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO

from topics.errors import DependencyDown

HOST = "127.0.0.1"
KILL_WAIT_S = 5.0
# A child that ends because its parent died still holds the directory for as long as its clean stop takes.
LOCK_TRIES = 40
LOCK_RETRY_S = 0.1
LOG_TAIL_BYTES = 65_536
LINE_CHARACTERS = 400
_COMPLAINTS = ("ERROR", "FATAL", "Exception", "Error:", "in use")

# Runs between fork and exec, in a fresh interpreter and not in a preexec_fn, which may deadlock under threads.
# 1 is PR_SET_PDEATHSIG; the parent may have died before it was set.
_TIE_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # As servers do: connections of a former server in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_ports(data_dir: Path, wanted: Mapping[str, int], *, server: str, setting: str) -> dict[str, int]:
    """Choose a port for each name: the wanted one or an error; for 0 the one of the last start if free, else any.

    Remembers the choice in the data directory, so that clients find a restarted server where it was.
    """
    path = data_dir / "ports.json"
    last: dict[str, int] = {}
    ports: dict[str, int] = {}
    with suppress(FileNotFoundError, ValueError):  # a torn file only means other ports
        last = json.loads(path.read_text())
    for name, port in wanted.items():
        if port and not is_free(port):
            raise DependencyDown(
                f"{server} cannot listen on port {port}: it is taken",
                f"{HOST}:{port}",
                f"Stop what listens there, or set {setting} to another port (0 picks a free one).",
            )
        ports[name] = port or _free_port(last.get(name, 0), taken=set(ports.values()))
    path.write_text(json.dumps(ports))
    return ports


def _free_port(preferred: int, *, taken: set[int]) -> int:
    """The preferred port if free, else any; never one of `taken`, which were only just promised to others."""
    if preferred and preferred not in taken and is_free(preferred):
        return preferred
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


class DirectoryLock:
    """Makes a data directory belong to one server.

    The child inherits the descriptor, so that an orphan still holds the lock.
    """

    def __init__(self, data_dir: Path, server: str) -> None:
        self._path = data_dir / "lock"
        self._server = server
        self._file = self._path.open("a+")
        try:
            self._acquire()
        except BaseException:
            self._file.close()
            raise

    @property
    def descriptor(self) -> int:
        """What the child must inherit."""
        return self._file.fileno()

    def note(self, child_pid: int) -> None:
        """Write down who holds it, for the message of the one that comes second."""
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()}, its server {child_pid}")
        self._file.flush()

    def release(self) -> None:
        """Let the next one in, once the child is gone too."""
        self._file.close()

    def _acquire(self) -> None:
        for attempt in range(LOCK_TRIES):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt + 1 < LOCK_TRIES:
                    time.sleep(LOCK_RETRY_S)
            else:
                return
        raise DependencyDown(
            f"{self._server} already runs on this data directory ({self._path.read_text() or 'holder unknown'})",
            str(self._path.parent),
            "Stop that process, or choose another data directory (RAMPMETER_STACK__DATA_DIR).",
        )


class LocalProcess:
    """One child that ends with this process, also when this process is killed (Linux).

    Invariant: the thread that forks the child lives as long as the child, since the death signal follows that thread.
    """

    def __init__(
        self,
        argv: Sequence[str],
        log_path: Path,
        *,
        keep_fd: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        started: Future[subprocess.Popen[bytes]] = Future()
        with log_path.open("ab") as log:
            threading.Thread(
                target=_run, args=(tuple(argv), log, keep_fd, env, started), name=f"holds {argv[0]}", daemon=True
            ).start()
            self._popen = started.result()

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._popen.pid

    def is_running(self) -> bool:
        """Tell whether the child lives."""
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the child ended, negative for a signal; None while it lives."""
        return self._popen.poll()

    def terminate(self) -> None:
        """Ask the child to end, and do not wait; harmless on a dead one."""
        self._popen.terminate()

    def kill(self) -> None:
        """End the child at once, and do not wait; harmless on a dead one."""
        self._popen.kill()

    def stop(self, grace_s: float) -> bool:
        """Ask the child to end, kill it when it has not within `grace_s`; tell whether it ended by itself."""
        self._popen.terminate()
        try:
            self._popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(KILL_WAIT_S)
            return False
        return True


def _run(
    argv: tuple[str, ...],
    log: IO[bytes],
    keep_fd: int | None,
    env: Mapping[str, str] | None,
    started: "Future[subprocess.Popen[bytes]]",
) -> None:
    tie = (sys.executable, "-I", "-S", "-c", _TIE_TO_PARENT, str(os.getpid())) if sys.platform == "linux" else ()
    try:
        popen = subprocess.Popen(  # noqa: S603 - our own command line
            (*tie, *argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=() if keep_fd is None else (keep_fd,),
            env=env,
            start_new_session=True,  # Ctrl-C goes to us alone: clients stop before their server
        )
    except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
        started.set_exception(error)
        return
    started.set_result(popen)
    if sys.platform == "linux":
        # Popen.wait would keep the end from whoever asks until this thread has had its turn.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)


def last_complaint(log_path: Path) -> str:
    """The last line of a log that tells of an error, else its last line."""
    if not log_path.is_file():
        return "no log was written"
    with log_path.open("rb") as log:
        log.seek(max(0, log_path.stat().st_size - LOG_TAIL_BYTES))
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    complaints = [line for line in lines if any(word in line for word in _COMPLAINTS)]
    return (complaints or lines or ["the log is empty"])[-1][:LINE_CHARACTERS]
