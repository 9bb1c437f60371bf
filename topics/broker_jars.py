"""The jars of the embedded broker: a pinned list, fetched once into a folder and checked by size and SHA-256.

No resolver runs, so that no transitive version can drift: a kafka-clients older than its broker kills the broker.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from topics.errors import DependencyDown

KAFKA_VERSION = "4.3.1"
MAX_DOWNLOADS = 4
MAX_TRIES = 3
REQUEST_TIMEOUT_S = 30
PROGRESS_EVERY_S = 2.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the list."""

    coordinate: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name within the folder."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def pinned() -> tuple[Jar, ...]:
    """Read the list that ships with this package."""
    text = (resources.files("topics") / "broker_jars.tsv").read_text("utf-8")
    lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return tuple(Jar(coordinate, int(size_bytes), sha256) for coordinate, size_bytes, sha256 in lines)


def cache_dir() -> Path:
    """Where lies what is fetched or made once for all data directories of a user."""
    return Path.home() / ".cache" / "rampmeter"


def default_dir() -> Path:
    """Where the jars lie unless told otherwise."""
    return cache_dir() / f"kafka-{KAFKA_VERSION}"


def class_path(jars_dir: Path, on_progress: Progress) -> str:
    """Fetch what is missing and return the class path; needs no network when all jars are there."""
    jars = pinned()
    missing = [jar for jar in jars if not _is_present(jars_dir / jar.file_name, jar)]
    if missing:
        _fetch_all(missing, jars_dir, on_progress)
    return ":".join(str(jars_dir / jar.file_name) for jar in jars)


def _is_present(path: Path, jar: Jar) -> bool:
    # Files arrive by rename after their hash was checked, so the size is enough to notice damage.
    return path.is_file() and path.stat().st_size == jar.size_bytes


def _fetch_all(jars: Iterable[Jar], jars_dir: Path, on_progress: Progress) -> None:
    jars_dir.mkdir(parents=True, exist_ok=True)
    total_bytes = sum(jar.size_bytes for jar in jars)
    on_progress(f"Kafka {KAFKA_VERSION}: downloading {_megabytes(total_bytes)} MB into {jars_dir} (once)")
    with (
        tempfile.TemporaryDirectory(dir=jars_dir, prefix=".download-") as scratch,
        ThreadPoolExecutor(MAX_DOWNLOADS) as pool,
    ):
        running = {pool.submit(_fetch, jar, Path(scratch), jars_dir): jar for jar in jars}
        try:
            _report(running, total_bytes, on_progress)
        finally:
            pool.shutdown(cancel_futures=True)
    on_progress(f"Kafka {KAFKA_VERSION}: downloaded")


def _report(running: dict[Future[None], Jar], total_bytes: int, on_progress: Progress) -> None:
    pending, done_bytes = set(running), 0
    while pending:
        done, pending = wait(pending, timeout=PROGRESS_EVERY_S)
        for future in done:
            future.result()
            done_bytes += running[future].size_bytes
        if pending:
            on_progress(f"Kafka {KAFKA_VERSION}: {_megabytes(done_bytes)} of {_megabytes(total_bytes)} MB")


def _fetch(jar: Jar, scratch: Path, jars_dir: Path) -> None:
    problem = "no attempt"
    for _ in range(MAX_TRIES):
        try:
            path = _download(jar, scratch)
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo raises RuntimeError
            problem = f"{type(error).__name__}: {error}"
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256:
            path.replace(jars_dir / jar.file_name)
            return
        path.unlink()
        problem = "its SHA-256 is not the pinned one"
    raise DependencyDown(
        f"the embedded Kafka broker's jar {jar.coordinate} could not be downloaded: {problem}",
        f"jars in {jars_dir}",
        "Check the network and proxy settings and start again (finished jars are kept), or use your own broker.",
    )


def _download(jar: Jar, scratch: Path) -> Path:
    # Imported here, since a start with all jars in place should not pay for it.
    from jgo.config import GlobalSettings  # noqa: PLC0415
    from jgo.maven import MavenContext  # noqa: PLC0415

    group, artifact, version = jar.coordinate.split(":")
    context = MavenContext(
        repo_cache=scratch,
        remote_repos=GlobalSettings.load().repositories or None,
        timeout=REQUEST_TIMEOUT_S,
    )
    found = context.project(group, artifact).at_version(version).artifact()
    if found.cached_path is not None:
        # A torn file of an earlier attempt would count as downloaded.
        with suppress(FileNotFoundError):
            found.cached_path.unlink()
    return found.resolve()


def _megabytes(size_bytes: int) -> int:
    return round(size_bytes / 1e6)
