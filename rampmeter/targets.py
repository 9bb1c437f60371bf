"""Where Prometheus finds the processes of a local stack: a file that follows them as they come and go."""

import json
import os
from pathlib import Path

from rampmeter import kin
from topics.local_process import HOST

FILE_NAME = "targets.json"


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
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": [f"{HOST}:{port}" for port in ports]}]))
        fresh.replace(self._path)
        self._shown = ports

    def remove(self) -> None:
        """Take the file away."""
        self._path.unlink(missing_ok=True)
