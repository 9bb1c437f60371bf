"""Where Prometheus finds the processes of a local stack: a file that follows them as they come and go.

A second file is there during a drill, and names a page that is none of a process of the stack.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rampmeter import kin
from topics.local_process import HOST

FILE_NAME, DRILL_FILE_NAME = "targets.json", "drill.json"
DRILL = {"drill": "rampmeter chaos"}
"""Label of what is only told: whoever reads an alert sees it."""


class Targets:
    """Keeps the file in a data directory.  One writer: the process that started the stack."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._shown: list[int] | None = None

    def refresh(self) -> None:
        """Write the file anew if other processes run than before."""
        ports = sorted(one.status_port for one in kin.descendants(os.getpid()) if one.status_port)
        if ports == self._shown:
            return
        _write(self._path, ports, {})
        self._shown = ports

    def remove(self) -> None:
        """Take the file away."""
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def drill(data_dir: Path, port: int) -> Iterator[None]:
    """Show the page of this port too, with a label that says what it is."""
    path = data_dir / DRILL_FILE_NAME
    _write(path, [port], DRILL)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, ports: Sequence[int], labels: Mapping[str, str]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps([{"targets": [f"{HOST}:{port}" for port in ports], "labels": labels}]))
    fresh.replace(path)
