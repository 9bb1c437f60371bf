"""The simulator compiled by mypyc: the same modules with the same results to the last bit, about twice as fast.

A compiled copy of the packages lies in the user's cache, named by what it is made of.  Only the simulator runs it.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from topics import broker_jars
from topics.errors import DependencyDown

FLAG = "--compiled"
PACKAGES = ("autoscaler", "gpu_consumers", "rampmeter", "streams", "topics")
MODULES = (
    "gpu_consumers/engines/iteration_model.py",
    *(f"gpu_consumers/policy/{name}.py" for name in ("batching", "capacity", "demand", "selection")),
    *(f"rampmeter/simulation/{name}.py" for name in ("admitting", "consumer", "jobs", "lanes", "stations", "timeline")),
    *(f"streams/policy/{name}.py" for name in ("admission", "placement", "sharing")),
)
"""Where the time goes.  A class that another one extends is compiled with it, or neither is."""
_ROOT = Path(__file__).parents[2]
_FIX = f"It needs mypy and setuptools (`make .venv/.installed-dev`) and a C compiler; without {FLAG} it runs as it is."


def go_on(say: Callable[[str], None]) -> None:
    """Begin this command again with the compiled copy, which is made at the first time; raises DependencyDown."""
    folder = ensure(broker_jars.cache_dir(), say)
    words = [sys.executable, *(word for word in sys.argv if word != FLAG)]
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    os.execve(sys.executable, words, os.environ | {"PYTHONPATH": path})  # noqa: S606 - our own command line


def ensure(cache_dir: Path, say: Callable[[str], None]) -> Path:
    """Where the compiled copy of these very modules lies; the copy of others is removed."""
    if importlib.util.find_spec("mypyc") is None:
        raise DependencyDown("the simulator cannot be compiled: there is no mypyc", sys.executable, _FIX)
    folder = cache_dir / f"simulator-{_digest()}"
    if not folder.exists():
        say("compiling the simulator (once, about a minute)")
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix="compiling-") as beside:
            made = Path(beside) / "simulator"
            _compile(made, cache_dir / "simulator.log")
            for old in cache_dir.glob("simulator-*"):
                shutil.rmtree(old, ignore_errors=True)
            made.rename(folder)
    return folder


def _digest() -> str:
    found = hashlib.sha256(f"{sys.version} {version('mypy')}".encode())
    for package in PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            found.update(str(path.relative_to(_ROOT)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _compile(folder: Path, log_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(_ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    with log_path.open("wb") as log:
        command = [sys.executable, "-m", "mypyc", *MODULES]
        ended = subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False)  # noqa: S603 - our own
    if ended.returncode:
        raise DependencyDown("the simulator could not be compiled", f"log {log_path}", _FIX)
    shutil.rmtree(folder / "build")
