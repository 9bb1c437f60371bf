"""How others size a fleet: by the number of messages, through Kubernetes' horizontal pod autoscaler.

The formula, tolerance, scale-up policy and stabilisation are those of its documentation (HPA v2, defaults); KEDA gives
it the consumer group's lag.  Both see every message at once, also what our admission holds back, and no failed reading.
"""

import math
from dataclasses import dataclass

from rampmeter.simulation.scaling import Rule, Scale, Scaler, Scaling, Scene
from topics.telemetry import Telemetry

SYNC_S = 15.0
DOWN_STABILISATION_S = 300.0
TOLERANCE_RATIO = 0.1
UP_PODS, UP_RATIO = 4, 2.0
"""In one sync: so many more, or so many times as many, whichever is more."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What is averaged over the pods, and how often it is read."""

    target_records: float
    poll_s: float
    counts_running: bool
    """Lag is what is not committed, running work included; a queue's length is what waits."""


METRICS: dict[Rule, Metric] = {
    "keda-lag": Metric(target_records=10.0, poll_s=30.0, counts_running=True),
    # Half of an engine's window: knows the engine and the size of the requests, as nobody does in advance.
    "keda-tuned": Metric(target_records=32.0, poll_s=30.0, counts_running=True),
    "hpa-queue": Metric(target_records=10.0, poll_s=SYNC_S, counts_running=False),
}


class HpaScaler:
    """The autoscaler of Kubernetes on one metric, in place of a `Scaler`."""

    period_s = SYNC_S

    def __init__(self, metric: Metric, scaling: Scaling, scene: Scene, scale: Scale) -> None:
        self._metric, self._scaling, self._scale = metric, scaling, scale
        self._scene, self._fleet = scene, scene.fleet
        self._records, self._polled_s = 0, -math.inf
        self._wanted: list[tuple[float, int]] = []

    def note(self, telemetry: Telemetry) -> None:
        """It asks no consumer."""

    def step(self, now_s: float) -> None:
        """Poll when it is time, then sync."""
        if now_s - self._polled_s >= self._metric.poll_s:
            self._polled_s, self._records = now_s, self._count()
        current, wanted = self._fleet.wanted, self._replicas(now_s)
        if wanted != current:
            self._scale(wanted, now_s)

    def _count(self) -> int:
        running = sum(one.running for one in self._fleet.members) if self._metric.counts_running else 0
        on_lanes = sum(len(partition.waiting) for partition in self._scene.partitions)
        return running + on_lanes + self._scene.held_requests()

    def _replicas(self, now_s: float) -> int:
        """As many as the metric asks for; at most so many more, and not fewer than in the last five minutes."""
        current, target, scaling = self._fleet.wanted, self._metric.target_records, self._scaling
        ratio = self._records / (target * max(1, current))
        asked = current if abs(ratio - 1) <= TOLERANCE_RATIO else math.ceil(self._records / target)
        asked = max(scaling.min_replicas, min(asked, scaling.max_replicas))
        self._wanted = self._wanted or [(now_s, current)]  # what it finds is its first recommendation
        self._wanted = [(at_s, count) for at_s, count in self._wanted if now_s - at_s < DOWN_STABILISATION_S]
        self._wanted.append((now_s, asked))
        if asked > current:
            return min(asked, max(current + UP_PODS, math.floor(current * UP_RATIO)))
        return min(current, max(count for _, count in self._wanted))


def scaler_of(scaling: Scaling, scene: Scene, scale: Scale) -> Scaler | HpaScaler:
    """The one that sizes the fleet by its rule."""
    if scaling.rule == "ours":
        return Scaler(scaling, scene, scale)
    return HpaScaler(METRICS[scaling.rule], scaling, scene, scale)
