"""The whole local stack in one place: broker and Redis (unless the user has them), topics, workers, consumers."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, Self

from rampmeter import state, supervisor
from rampmeter.settings import StackSettings
from streams.settings import StreamsSettings
from topics import admin, clients
from topics.clock import Clock
from topics.errors import ConfigError, DependencyDown
from topics.local_process import HOST
from topics.settings import load, variable_name

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.  `engines` 0 leaves the number of consumers to the autoscaler."""

    data_dir: Path
    streams_workers: int = 1
    engines: int = 0
    llama: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables of the children beside the user's own."""
    is_found: bool = False
    """Leave a note by which other commands find this stack."""


class Server(Protocol):
    """What the embedded broker and Redis have in common."""

    @property
    def log_path(self) -> Path:
        """What it said."""

    def is_running(self) -> bool:
        """Tell whether it lives."""

    def __enter__(self) -> Self:
        """Start it."""

    def __exit__(self, *_: object) -> None:
        """Stop it."""


@dataclass(frozen=True, slots=True)
class _Services:
    """Addresses of Kafka and Redis, and those of them that run here."""

    settings: StackSettings
    embedded: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """A stack that is ready."""

    settings: StackSettings
    children: supervisor.Supervisor
    endpoints: dict[str, str]
    plan: Plan
    env: dict[str, str]
    servers: Sequence[Server]

    def check(self) -> None:
        """Raise when the embedded broker or Redis has ended: nothing works then, and a restart may show why."""
        for server in self.servers:
            if not server.is_running():
                raise DependencyDown(
                    "an embedded server ended by itself", f"log {server.log_path}", "Read its log and start again."
                )

    def start_llama(self, timeout_s: float) -> None:
        """Add the pool `cpu`'s consumer and wait until it is ready."""
        (port,) = _free_ports(1)
        self.children.start([_llama(self.env, port)])
        self.children.wait_ready(timeout_s)


def make_folder(path: Path) -> None:
    """Make the data directory; raises ConfigError when it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            [f"RAMPMETER_STACK__DATA_DIR: {path} cannot be made: {error.strerror}; name another"]
        ) from error


@contextmanager
def running(settings: StackSettings, plan: Plan, clock: Clock, say: Say) -> Iterator[Running]:
    """Start everything, in the order of what needs what; stop it in the reverse order at the end."""
    started_s = clock.mono_s()
    _refuse_shadows()
    make_folder(plan.data_dir)
    with ExitStack() as held:
        services = _services(settings, plan, held, say)
        reached = services.settings
        created = admin.apply(reached)
        admin.require(reached)
        say(f"topics: {len(created)} created, all as they should be")
        children = supervisor.Supervisor(plan.data_dir / "logs", clock, settings.stack.restart_max_s, say)
        held.callback(_stop, children, settings.stack.stop_timeout_s, say)
        env = {
            **plan.env,
            "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": reached.kafka["bootstrap.servers"],
            "RAMPMETER_REDIS__URL": reached.redis.url,
        }
        programs = _programs(plan, env)
        say(f"starting {', '.join(program.name for program in programs)}")
        children.start(programs)
        children.wait_ready(settings.stack.ready_timeout_s)
        endpoints = {"kafka": reached.kafka["bootstrap.servers"], "redis": state.shown_redis(reached)}
        endpoints |= {program.name: program.url for program in programs}
        if plan.is_found:
            state.write(plan.data_dir, reached, endpoints)
            held.callback(state.remove, plan.data_dir)
        say(f"ready after {clock.mono_s() - started_s:.1f} s")
        yield Running(reached, children, endpoints, plan, env, services.embedded)


def _refuse_shadows() -> None:
    """A stack whose own workers would carry nothing out answers nobody."""
    if load(StreamsSettings).streams.shadow is not None:
        variable = variable_name(("streams", "shadow"))
        raise ConfigError([f"{variable} is set: unset it here, and set it for the shadow's own `python -m streams`"])


def _services(settings: StackSettings, plan: Plan, held: ExitStack, say: Say) -> _Services:
    """Start the embedded broker and Redis side by side, or check the user's; return settings that reach them."""
    # Imported only where they run: a user's own Kafka needs no Java package.
    from topics.local_broker import LocalBroker  # noqa: PLC0415
    from topics.local_redis import LocalRedis  # noqa: PLC0415

    own, embedded = settings.stack, list[Server]()
    broker = LocalBroker(
        plan.data_dir / "kafka", port=own.kafka_port, on_progress=say, port_setting="RAMPMETER_STACK__KAFKA_PORT"
    )
    redis = LocalRedis(plan.data_dir / "redis", own.redis_port, port_setting="RAMPMETER_STACK__REDIS_PORT")
    if state.has_own_kafka(settings):
        clients.require_kafka(settings)
    else:
        say("starting the embedded Kafka broker")
        embedded.append(broker)
    if state.has_own_redis(settings):
        clients.require_redis(settings)
    else:
        embedded.append(redis)
    with ThreadPoolExecutor(2, thread_name_prefix="services") as pool:
        for starting in [pool.submit(held.enter_context, server) for server in embedded]:
            starting.result()
    reached = {
        "kafka": {**settings.kafka, "bootstrap.servers": broker.bootstrap_servers}
        if broker in embedded
        else settings.kafka,
        "redis": settings.redis.model_copy(update={"url": redis.url}) if redis in embedded else settings.redis,
    }
    return _Services(settings.model_copy(update=reached), tuple(embedded))


def _programs(plan: Plan, env: Mapping[str, str]) -> list[supervisor.Program]:
    ports = iter(_free_ports(plan.streams_workers + max(1, plan.engines) + 1))
    made = [supervisor.python(f"streams-{n}", "streams", env, next(ports)) for n in range(1, plan.streams_workers + 1)]
    if plan.engines == 0:
        made.append(supervisor.python("autoscaler", "autoscaler", env, next(ports)))
    for n in range(1, plan.engines + 1):
        name = f"gpu-{n}"
        made.append(supervisor.python(name, "gpu_consumers", {**env, "RAMPMETER_GPU__POOL": "default"}, next(ports)))
    if plan.llama:
        made.append(_llama(env, next(ports)))
    return made


def _llama(env: Mapping[str, str], port: int) -> supervisor.Program:
    gpu = {"RAMPMETER_GPU__POOL": "cpu", "RAMPMETER_GPU__ENGINE": "llama"}
    return supervisor.python("gpu-llama", "gpu_consumers", {**env, **gpu}, port)


def _stop(children: supervisor.Supervisor, timeout_s: float, say: Say) -> None:
    """Consumers first, so that what they finish is still settled; then the rest."""
    say("stopping: consumers finish what they run")
    names = children.names()
    first = [name for name in names if name == "autoscaler" or name.startswith("gpu-")]
    children.stop(first, timeout_s)
    children.stop(None, timeout_s)


def _free_ports(count: int) -> list[int]:
    """Different ports that were free a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in sockets]
