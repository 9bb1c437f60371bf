"""Settings of the command: the local stack, where it keeps its data and what it runs, and the sender's key."""

from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from rampmeter.signing import Signing
from topics.section import Section
from topics.settings import Settings


class Stack(Section):
    """What `rampmeter up`, `demo` and `replay` start."""

    data_dir: Path = Path(".rampmeter")
    """Broker data, logs and the state file by which `submit` finds the running stack."""
    kafka_port: int = Field(0, ge=0, le=65535)
    """Port of the embedded broker; 0 takes the last one used, or a free one."""
    redis_port: int = Field(0, ge=0, le=65535)
    """Port of the embedded Redis; 0 takes the last one used, or a free one."""
    streams_workers: PositiveInt = 1
    """At most as many as landing partitions get work."""
    engines: NonNegativeInt = 0
    """GPU consumers of the pool `default`; 0 leaves their number to the autoscaler."""
    llama: bool = True
    """Serve the pool `cpu` with a real small model; about 300 MB of memory."""
    ready_timeout_s: PositiveFloat = 60.0
    """Too small: a slow machine never starts.  Too large: a stuck start is noticed late."""
    grace_s: PositiveFloat = 10.0
    """How long consumers of `up` finish what they run.  Then it goes back to its lane, for the next start."""
    stop_timeout_s: PositiveFloat = 30.0
    """Too small: requests that run are cut off and run again later.  Too large: Ctrl-C takes as long."""
    restart_max_s: PositiveFloat = 5.0
    """Longest pause before a crashed process is started again."""


class StackSettings(Settings):
    """Everything the command needs."""

    stack: Stack = Stack()
    signing: Signing = Signing()
