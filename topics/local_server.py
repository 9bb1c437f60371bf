"""What every embedded server is: a child of this process with a data directory of its own."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from topics import local_process
from topics.errors import DependencyDown


class LocalServer(ABC):
    """A server that lives between `start` and `stop` (or in a `with` block), and never longer than this process.

    One thread at a time.
    """

    name: str
    """What errors call it."""
    log_name: str
    stop_grace_s: float
    """It is ended by force after that."""
    way_out: str
    """What to do when it does not start, beside reading its log."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.resolve()
        self._process: local_process.LocalProcess | None = None
        self._lock: local_process.DirectoryLock | None = None

    @abstractmethod
    def _prepare(self) -> tuple[str, ...]:
        """Choose its ports and write what it reads; its command line."""

    @abstractmethod
    def _wait_for_answer(self, process: local_process.LocalProcess) -> None:
        """Return once clients are answered; raises `_failure` where they are not."""

    @property
    def pid(self) -> int | None:
        """The process id while it is started."""
        return self._process.pid if self._process else None

    @property
    def log_path(self) -> Path:
        """What it said since its last start."""
        return self._data_dir / self.log_name

    def is_running(self) -> bool:
        """Tell whether it lives."""
        return self._process is not None and self._process.is_running()

    def start(self) -> None:
        """Run it and return once clients are answered; raises DependencyDown."""
        if self._process is not None:
            return
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = local_process.DirectoryLock(self._data_dir, self.name)
        try:
            command = self._prepare()
            self._process = local_process.LocalProcess(command, self.log_path, keep_fd=self._lock.descriptor)
            self._lock.note(self._process.pid)
            self._wait_for_answer(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it cleanly, or by force after `stop_grace_s`; harmless when it does not run."""
        if self._process is not None:
            self._process.stop(self.stop_grace_s)
        self._process = None
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _failure(self, what: str) -> DependencyDown:
        reason = local_process.last_complaint(self.log_path)
        return DependencyDown(f"{self.name} {what}: {reason}", f"log {self.log_path}", f"Read the log{self.way_out}")
