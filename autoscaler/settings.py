"""Settings of the autoscaler: which pools it sizes, between which bounds, how fast, and by which target."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from autoscaler.policy.replicas import Limits
from autoscaler.policy.sensing import Rules
from topics.records import Role, Tier
from topics.section import Section
from topics.settings import Settings


def default_deployment(pool: str, role: Role = Role.GENERAL) -> str:
    """The Deployment of a pool's consumers; Kubernetes allows less in a name than we do in a pool's."""
    return re.sub(r"[^a-z0-9-]", "-", f"rampmeter-gpu-{pool}-{role.value}".lower())


class ScaledPool(Section):
    """Bounds of one pool, and what its consumers are told."""

    min_replicas: NonNegativeInt = 1
    """0 lets an idle pool disappear; the first request then waits for a cold start."""
    max_replicas: PositiveInt = 4
    """Never more than the pool's lane partitions get work, whatever this says."""
    priority: int = 0
    """Where `gpu_quota` does not suffice the larger number goes first; others shrink for it down to their minimum."""
    gpus_per_replica: PositiveInt = 1
    """What one consumer takes of `gpu_quota`."""
    env: dict[str, str] = Field({})
    """Variables of this pool's consumers, for example {"RAMPMETER_GPU__ENGINE": "llama"}; given as JSON or TOML."""
    deployment: str | None = None
    """Where they run on Kubernetes; unset: `rampmeter-gpu-<pool>-general`, as in `rampmeter config deployment`."""


class Autoscaler(Section):
    """How the fleet follows the work that waits."""

    pools: dict[str, ScaledPool] = Field({})
    """The pools to size, and no others; none named means the pool `default` with the bounds above."""
    target: Literal["process", "kubernetes", "keda", "metric", "dry-run"] = "process"
    """`process` runs consumers as children of the autoscaler; `kubernetes` sizes Deployments, and nobody else may;
    `keda` answers KEDA, which sizes them; `metric` leaves them to an HPA that reads /metrics; `dry-run` only says what
    it would do."""
    keda_address: str = Field("127.0.0.1:9300", pattern=r"^.+:\d+$")
    """Where KEDA's external scaler listens, in plain gRPC: let only KEDA in."""
    namespace: str | None = None
    """Of the Deployments; unset: the autoscaler's own, or that of the kubeconfig."""
    period_s: PositiveFloat = 1.0
    """Too small: load on the broker.  Too large: bursts are seen late."""
    read_timeout_s: PositiveFloat = 5.0
    """Longest wait for one answer of the broker; then the count is held."""
    stale_after_s: PositiveFloat = 30.0
    """/livez complains when no round ended for this long.  Must exceed a round in which every read times out."""
    target_drain_s: PositiveFloat = 10.0
    """What waits should be gone in this time.  Too small: jumps to the maximum.  Too large: queues stay."""
    target_drain_by_tier: dict[Tier, PositiveFloat] = Field({})
    """The same of single tiers, for example {"low": 120}: work that may wait asks for fewer replicas."""
    cold_start_s: NonNegativeFloat = 5.0
    """From the order of a replica until it serves, a model's loading included.  Too small: what is on its way is
    ordered again.  Too large: it orders for a backlog that will not be there."""
    forecast_window_s: PositiveFloat = 60.0
    """Readings through which the trend of arrivals is laid, to be continued for `cold_start_s`.  Too small: noise
    becomes a trend.  Too large: a rise is seen late, and after a fall the fleet stays for as long."""
    gpu_quota: PositiveInt | None = None
    """GPUs of all pools together; none: no such bound.  Minimums hold even beyond it."""
    nominal_units_per_s: PositiveFloat = 1000.0
    """What one replica serves until it was measured: 1000 for the reference engine, times its speed factor."""
    arrival_memory_s: PositiveFloat = 5.0
    """Time constant of the arrival rate.  Too small: a burst counts as if it went on.  Too large: reacts late."""
    up_after_s: NonNegativeFloat = 1.0
    """More replicas must be wanted for this long.  Too small: starts consumers for a blip."""
    down_after_s: NonNegativeFloat = 30.0
    """Fewer must be wanted for this long.  Too small: stops consumers in every lull."""
    idle_after_s: NonNegativeFloat = 120.0
    """The last replica goes only when every reading of so long a time showed an empty lane, idle engines and no
    arrival.  Too small: the next request waits for a cold start.  Too large: an idle GPU is held."""
    cooldown_s: NonNegativeFloat = 5.0
    """No change for this long after a change, in either direction, and no removal for as long after a rebalance, since
    that makes lag look worse.  Too small: changes on false figures.  Too large: reacts late."""
    tolerance_replicas: float = Field(0.15, ge=0, lt=0.5)
    """Dead band around a whole number of replicas, for each replica that is needed.  0: flips at the boundary.  Too
    large: a fleet that is a little too small stays so until work waits."""
    step_up_replicas: PositiveInt = 4
    step_down_replicas: PositiveInt = 1
    """Largest changes at once; each change costs a rebalance, and each removal a drain."""
    telemetry_stale_s: PositiveFloat = 5.0
    """A consumer that was silent for this long is not counted as ready."""
    grace_s: PositiveFloat = 50.0
    """A stopped consumer is killed after this time; what it still ran is run again by another.  Not below its
    `termination_s`, which `rampmeter config print` shows."""
    restart_backoff_s: PositiveFloat = 0.5
    restart_backoff_max_s: PositiveFloat = 30.0
    """Pause before a crashed consumer is replaced, doubled by each crash in a row up to the maximum."""
    log_dir: Path = Path(".rampmeter/logs")
    """One log per consumer."""

    @property
    def scaled(self) -> dict[str, ScaledPool]:
        """The pools to size."""
        return self.pools or {"default": ScaledPool()}

    def limits(self, min_replicas: int, max_replicas: int, partitions: int) -> Limits:
        """What the policy may do with a pool of these bounds."""
        return Limits(
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            partitions=partitions,
            drain_s=tuple(self.target_drain_by_tier.get(tier, self.target_drain_s) for tier in Tier),
            cold_start_s=self.cold_start_s,
            up_after_s=self.up_after_s,
            down_after_s=self.down_after_s,
            idle_after_s=self.idle_after_s,
            cooldown_s=self.cooldown_s,
            tolerance_replicas=self.tolerance_replicas,
            step_up_replicas=self.step_up_replicas,
            step_down_replicas=self.step_down_replicas,
        )

    def sensing(self) -> Rules:
        """How rates are learnt."""
        return Rules(self.nominal_units_per_s, self.arrival_memory_s, self.forecast_window_s, self.cold_start_s)


class AutoscalerSettings(Settings):
    """The shared settings and this package's section."""

    autoscaler: Autoscaler = Autoscaler()

    @model_validator(mode="after")
    def _can_be_scaled(self) -> Self:
        problems = []
        for name, pool in self.autoscaler.scaled.items():
            if name not in self.pools:
                problems.append(
                    f"autoscaler.pools names {name!r}, which is not in pools ({', '.join(sorted(self.pools))})"
                )
                continue
            partitions = self.pools[name].lane_partitions
            if pool.min_replicas > min(pool.max_replicas, partitions):
                problems.append(
                    f"autoscaler.pools.{name}.min_replicas is {pool.min_replicas}, above max_replicas"
                    f" {pool.max_replicas} or the pool's {partitions} lane partitions"
                )
        least = sum(pool.min_replicas * pool.gpus_per_replica for pool in self.autoscaler.scaled.values())
        if self.autoscaler.gpu_quota is not None and least > self.autoscaler.gpu_quota:
            problems.append(
                f"autoscaler.gpu_quota is {self.autoscaler.gpu_quota}, but the min_replicas of all pools take {least}"
            )
        slowest_s = self.autoscaler.read_timeout_s * (len(self.autoscaler.scaled) + 2)
        if self.autoscaler.stale_after_s <= slowest_s:
            problems.append(
                f"autoscaler.stale_after_s is {self.autoscaler.stale_after_s:g}, but a round in which every read"
                f" times out takes {slowest_s:g} s (read_timeout_s for each pool, telemetry and decisions)"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def deployments(self) -> dict[str, str]:
        """Where each scaled pool's consumers run on Kubernetes."""
        return {name: pool.deployment or default_deployment(name) for name, pool in self.autoscaler.scaled.items()}

    def limits(self, pool: str) -> Limits:
        """What the policy may do with a pool."""
        own = self.autoscaler.scaled[pool]
        return self.autoscaler.limits(own.min_replicas, own.max_replicas, self.pools[pool].lane_partitions)
