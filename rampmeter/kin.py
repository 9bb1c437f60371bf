"""The processes of a local stack, as Linux's /proc shows them to the user whose they are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from topics.settings import ENV_PREFIX

_PROC = Path("/proc")
_MODULES = ("streams", "gpu_consumers", "autoscaler")
_SERVERS = {"java": "kafka", "redis-server": "redis", "valkey-server": "redis"}


@dataclass(frozen=True, slots=True)
class Kin:
    """One process."""

    pid: int
    name: str
    """`streams`, `gpu_consumers`, `autoscaler`, `kafka`, `redis`; empty for any other."""
    env: Mapping[str, str] = field(repr=False)
    """Variables of ours that it was started with."""

    @property
    def status_port(self) -> int:
        """Where its /metrics are; 0 for one without."""
        return int(self.env.get(f"{ENV_PREFIX}STATUS_PORT", 0)) if self.name in _MODULES else 0


def descendants(pid: int) -> list[Kin]:
    """What this process has started, directly or not, by process id; empty where there is no /proc."""
    parents = dict(_parents())
    return [_read(child) for child in sorted(parents) if _descends(child, pid, parents)]


def owner(pid: int) -> int | None:
    """The user whose process it is; None when it has ended."""
    try:
        return (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def argv(pid: int) -> list[str]:
    """Its command line; empty when it has ended or belongs to the kernel."""
    return _words(pid, "cmdline")


def _parents() -> Iterator[tuple[int, int]]:
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # The name in brackets may hold anything; the parent is the second word behind it.
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue


def _descends(child: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    seen = set[int]()
    while (child := parents.get(child, 0)) and child not in seen:
        if child == ancestor:
            return True
        seen.add(child)
    return False


def _read(pid: int) -> Kin:
    variables = (word.partition("=") for word in _words(pid, "environ") if word.startswith(ENV_PREFIX))
    return Kin(pid, _name(argv(pid)), {name: value for name, _, value in variables})


def _name(words: list[str]) -> str:
    if not words:
        return ""
    program = Path(words[0]).name.split(" ")[0]  # a server may write its address behind its name
    if program in _SERVERS:
        return _SERVERS[program]
    return words[2] if words[1:2] == ["-m"] and words[2] in _MODULES else ""


def _words(pid: int, file: str) -> list[str]:
    try:
        return (_PROC / str(pid) / file).read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
