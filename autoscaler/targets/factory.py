"""The target that the settings name.  What only one of them needs is imported only for it: extras may be missing."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import assert_never

from autoscaler.fleet import FleetReader
from autoscaler.metrics import Metrics
from autoscaler.settings import AutoscalerSettings
from autoscaler.target import ScaleTarget
from autoscaler.targets.dry_run import DryRunTarget
from autoscaler.targets.metric import MetricTarget
from autoscaler.targets.process import ProcessLimits, ProcessTarget
from topics.clock import Clock
from topics.errors import ConfigError
from topics.records import Decision


@dataclass(frozen=True, slots=True)
class Around:
    """What targets are built from; `environment` is what children get, `stack` closes what is opened."""

    environment: Mapping[str, str]
    clock: Clock
    metrics: Metrics
    fleets: FleetReader
    stack: ExitStack
    listeners: list[Callable[[Decision], None]]
    """Who is told of decisions; targets add themselves."""

    def publish(self, decision: Decision) -> None:
        """Tell all of them."""
        for listener in self.listeners:
            listener(decision)

    def ready(self, pool: str) -> int:
        """How many consumers of a pool said lately that they are ready."""
        return sum(report.pool == pool and report.state == "ready" for report in self.fleets.reports())


def build(loaded: AutoscalerSettings, around: Around) -> ScaleTarget:
    """Build it; raises ConfigError or DependencyDown when it cannot work."""
    match loaded.autoscaler.target:
        case "dry-run":
            return DryRunTarget()
        case "process":
            return _process(loaded, around)
        case "kubernetes":
            return _with_extra("kubernetes", lambda: _kubernetes(loaded, around))
        case "keda":
            return _with_extra("keda", lambda: _keda(loaded, around))
        case "metric":
            return MetricTarget(around.ready)
        case _:
            assert_never(loaded.autoscaler.target)


def _with_extra(extra: str, make: Callable[[], ScaleTarget]) -> ScaleTarget:
    try:
        return make()
    except ModuleNotFoundError as error:
        problem = f"autoscaler.target {extra} needs the package {error.name}: pip install 'rampmeter[{extra}]'"
        raise ConfigError([problem]) from error


def _process(loaded: AutoscalerSettings, around: Around) -> ScaleTarget:
    scaling, exits = loaded.autoscaler, around.metrics.exits
    limits = ProcessLimits(scaling.log_dir, scaling.grace_s, scaling.restart_backoff_s, scaling.restart_backoff_max_s)
    envs = {name: {**around.environment, **pool.env} for name, pool in scaling.scaled.items()}
    return ProcessTarget(envs, limits, around.clock, lambda pool, how: exits.labels(pool, how).inc())


def _kubernetes(loaded: AutoscalerSettings, around: Around) -> ScaleTarget:
    from autoscaler import cluster  # noqa: PLC0415 - see the module's docstring
    from autoscaler.drains import Drains  # noqa: PLC0415
    from autoscaler.targets.kubernetes import Crew, KubernetesTarget  # noqa: PLC0415

    drains = Drains(loaded, around.clock)
    around.stack.callback(drains.close)
    crew = Crew(around.fleets.reports, drains.order)
    connected = cluster.connect(loaded.autoscaler.namespace, loaded.autoscaler.read_timeout_s)
    target = KubernetesTarget(loaded.deployments(), connected, crew, around.clock)
    around.listeners.append(target.announce)
    return target


def _keda(loaded: AutoscalerSettings, around: Around) -> ScaleTarget:
    from autoscaler.targets.keda import KedaTarget  # noqa: PLC0415 - see the module's docstring

    scaling = loaded.autoscaler
    return KedaTarget(tuple(scaling.scaled), scaling.keda_address, around.clock, scaling.stale_after_s, around.ready)
