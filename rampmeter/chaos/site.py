"""The one stack that incidents may touch: that which this user's `rampmeter up` runs on this machine."""

import os
from dataclasses import dataclass
from pathlib import Path

from rampmeter import kin, state
from rampmeter.settings import StackSettings
from streams.settings import StreamsSettings
from topics.errors import ConfigError
from topics.local_process import HOST
from topics.settings import load


@dataclass(frozen=True, slots=True)
class Site:
    """A stack of `rampmeter up`: its settings, the process that started it, and where it keeps its data."""

    settings: StreamsSettings
    pid: int
    data_dir: Path

    def is_there(self) -> bool:
        """Whether it still runs."""
        return kin.owner(self.pid) is not None

    def pids(self, name: str) -> set[int]:
        """Its processes of this name now; see `kin.Kin.name`."""
        return {one.pid for one in kin.descendants(self.pid) if one.name == name}


def find() -> Site:
    """The stack of this folder; raises ConfigError for anything else."""
    own = load(StackSettings)
    path = own.stack.data_dir / state.FILE_NAME
    if state.has_own_kafka(own) or state.has_own_redis(own):
        raise _refusal("the settings name a Kafka or Redis of your own")
    pid = state.running(own.stack.data_dir)
    if pid is None:
        raise _refusal(f"{path} tells of no stack that runs")
    if kin.owner(pid) != os.getuid() or not _is_up(kin.argv(pid)):
        raise _refusal(f"process {pid}, of which {path} tells, is no `rampmeter up` of this user on this Linux machine")
    site = Site(state.connect(StreamsSettings), pid, own.stack.data_dir)
    servers = site.settings.kafka["bootstrap.servers"].split(",")
    is_local = all(server.startswith(f"{HOST}:") for server in servers) and f"//{HOST}:" in site.settings.redis.url
    if not (is_local and site.pids("kafka") and site.pids("redis")):
        raise _refusal("its Kafka or its Redis is not one that `rampmeter up` started")
    return site


def _is_up(argv: list[str]) -> bool:
    return "up" in argv and any(Path(word).name == "rampmeter" for word in argv)


def _refusal(why: str) -> ConfigError:
    return ConfigError([f"chaos: {why}; incidents are only for a stack of `rampmeter up`, run in its folder"])
