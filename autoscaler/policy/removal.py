"""Which pods of a pool go, and when: first told to drain, and gone only when nothing runs in them.  Pure.

Kubernetes chooses whom it takes when a count is lowered, by an order of its own.  So the count is lowered only as far
as those at the head of that order have nothing left to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

DRAINED_COST = -2
DRAINING_COST = -1
_PHASES = ("Pending", "Unknown", "Running")
"""In the order in which a ReplicaSet takes them."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is known of the consumer in a pod."""

    consumer: str
    is_told: bool
    """It was ordered to drain."""
    is_draining: bool
    """It says that it takes no more work."""
    running_requests: int
    running_units: float


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that is not being deleted."""

    name: str
    template: str
    """The pods of a rollout have more than one."""
    is_assigned: bool
    phase: str
    is_ready: bool
    has_started: bool
    """Whether a container of it runs."""
    work: Work | None
    """None is unknown, not idle."""
    deletion_cost: int = 0
    is_unschedulable: bool = False
    """No node has room for it."""

    @property
    def is_leaving(self) -> bool:
        """Whether it will take no more work."""
        return self.has_started and self.work is not None and (self.work.is_told or self.work.is_draining)

    @property
    def is_done(self) -> bool:
        """Whether it takes no more work and has none."""
        return self.is_leaving and self.work is not None and self.work.is_draining and not self.work.running_requests

    @property
    def wanted_cost(self) -> int:
        """The pod-deletion-cost that makes it go before those that serve."""
        if not self.is_leaving:
            return 0
        return DRAINED_COST if self.is_done else DRAINING_COST


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: costs first, the count last."""

    count: int
    """For the scale: what should serve, and what leaves and is not done."""
    drain: tuple[str, ...] = ()
    """Consumers to be told."""
    costs: tuple[tuple[str, int], ...] = ()
    """Pods whose pod-deletion-cost must change, with its value."""


def serving(pods: Sequence[Pod], count: int) -> int:
    """How many of a scale's `count` are there to stay."""
    return count - sum(pod.is_leaving for pod in _staying(pods, count))


def plan(pods: Sequence[Pod], count: int, wanted: int) -> Plan:
    """What brings a scale of `count` to `wanted` that serve; called again until it is there."""
    there = _staying(pods, count)
    costs = tuple((pod.name, pod.wanted_cost) for pod in there if pod.deletion_cost != pod.wanted_cost)
    leaving = sum(pod.is_leaving for pod in there)
    surplus = count - leaving - wanted
    if surplus < 0:  # those that leave cannot come back, so others serve in their place
        return Plan(wanted + leaving, costs=costs)
    is_rollout = len({pod.template for pod in there}) > 1
    uncreated = count - len(there)
    if is_rollout or uncreated > surplus:
        return Plan(count, costs=costs)
    idle = sum(not pod.has_started for pod in there)
    told = _next_to_leave(there)[: max(0, surplus - uncreated - idle)]
    return Plan(count - uncreated - _head(there, surplus - uncreated), tuple(told), costs)


def _staying(pods: Sequence[Pod], count: int) -> list[Pod]:
    """Without those that Kubernetes is about to delete, the next to go first."""
    return sorted(pods, key=_kubernetes_order)[max(0, len(pods) - count) :]


def _head(pods: Sequence[Pod], spare: int) -> int:
    """How many Kubernetes would take without harm: those that are done, and `spare` that have not begun."""
    going = 0
    for pod in pods:
        if not pod.is_done:
            if pod.has_started or not spare:
                break
            spare -= 1
        going += 1
    return going


def _next_to_leave(pods: Sequence[Pod]) -> list[str]:
    """Consumers that serve, by how little they do; unready ones before, since Kubernetes takes them first."""
    found = [(pod.is_ready, pod.work.running_units, pod.work.consumer) for pod in pods if pod.work and _serves(pod)]
    return [consumer for _, _, consumer in sorted(found)]


def _serves(pod: Pod) -> bool:
    return pod.has_started and not pod.is_leaving


def _kubernetes_order(pod: Pod) -> tuple[bool, int, bool, int, str]:
    """Of a ReplicaSet's own order what is known here; costs are those that are about to be set."""
    phase = _PHASES.index(pod.phase) if pod.phase in _PHASES else len(_PHASES)
    return pod.is_assigned, phase, pod.is_ready, pod.wanted_cost, pod.name
