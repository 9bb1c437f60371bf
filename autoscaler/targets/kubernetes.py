"""Consumers as pods of a Deployment for each pool: counts by the scale subresource, nobody deleted who has work.

Who is to go is told so on the topic `control`, and its pod goes when it says that nothing runs in it any more.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
from lightkube.resources import core_v1

from autoscaler.cluster import COST_ANNOTATION, Cluster, Conflict, Happening, Scale
from autoscaler.policy import removal
from autoscaler.policy.removal import Pod, Work
from autoscaler.target import Unstarted
from topics.clock import Clock
from topics.errors import ConfigError, DependencyDown
from topics.records import Decision
from topics.telemetry import Telemetry

log = structlog.get_logger()

OWNERS_S = 10.0
"""How long it is believed that nobody else sizes a Deployment.  Too small: load.  Too large: two fight for as long."""
TOLD_S = 30.0
"""An order to drain that showed no effect for this long is given again."""
RETRY_S = 10.0
"""Pause after a change that Kubernetes refused."""
TRIES = 8
"""Every word that Kubernetes notes about a Deployment makes the version that was read a stale one."""
_TOLD = ("replicas_before", "replicas", "lag_records", "ready", "ideal_replicas", "problem")
TEMPLATE_LABEL = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Crew:
    """The consumers behind the pods."""

    reports: Callable[[], Iterable[Telemetry]]
    """The last report of each that spoke lately."""
    drain: Callable[[str], None]
    """Orders one to drain."""


@dataclass(slots=True)
class _Pool:
    """What is known of a pool's Deployment.  Written only by the loop."""

    deployment: str
    scale: Scale | None = None
    pods: list[Pod] = field(default_factory=list)
    told_s: dict[str, float] = field(default_factory=dict)
    problem: str | None = None
    refused_s: float | None = None
    unowned_s: float | None = None


class KubernetesTarget:
    """Sizes one Deployment for each pool.  For one thread.

    Without a sound reading, and while someone else sizes a Deployment, its count stays as it is.
    """

    def __init__(self, deployments: Mapping[str, str], cluster: Cluster, crew: Crew, clock: Clock) -> None:
        """Look at every Deployment; raises ConfigError with all that is in the way."""
        self._cluster, self._crew, self._clock = cluster, crew, clock
        self._pools = {pool: _Pool(deployment) for pool, deployment in deployments.items()}
        problems = [problem for pool in self._pools if (problem := self.problem(pool))]
        if problems:
            raise ConfigError(problems)

    def problem(self, pool: str) -> str | None:
        """Look again; what keeps the pool from being sized, or None."""
        known = self._pools[pool]
        problem, now_s = known.problem, self._clock.mono_s()
        if known.refused_s is None or now_s - known.refused_s >= RETRY_S:
            known.refused_s = None
            try:
                self._look(pool, known)
                problem = self._owned_by_others(known, now_s)
            except DependencyDown as error:
                problem = str(error)
        _complain(pool, known, problem)
        return problem

    def replicas(self, pool: str) -> int:
        """The count of the last look, without those that leave."""
        known = self._pools[pool]
        return 0 if known.scale is None else removal.serving(known.pods, known.scale.count)

    def unstarted(self, pool: str) -> Unstarted | None:
        """Pods that do not run as of the last look, or are not there yet; None while something is in the way."""
        known = self._pools[pool]
        if known.problem is not None or known.scale is None:
            return None
        started = sum(pod.has_started for pod in known.pods)
        return Unstarted(max(0, known.scale.count - started), sum(pod.is_unschedulable for pod in known.pods))

    def scale(self, pool: str, replicas: int) -> None:
        """Do what brings the pool nearer to that many; a refusal is the next `problem`."""
        known = self._pools[pool]
        if known.problem is not None or known.scale is None:
            return
        try:
            self._bring_to(pool, known, replicas)
        except DependencyDown as error:
            known.refused_s = self._clock.mono_s()
            _complain(pool, known, str(error))

    def announce(self, decision: Decision) -> None:
        """Make an event of a decision that was logged; one that is not taken is only logged."""
        known = self._pools[decision.id]
        told = [f"{name}={decision.inputs[name]}" for name in _TOLD if decision.inputs.get(name) is not None]
        problem = decision.inputs.get("problem")
        happening = Happening(
            reason="".join(word.capitalize() for word in decision.reason.split("_")),
            message=f"{decision.verdict}: {', '.join(told)}",
            at=datetime.fromtimestamp(decision.at_s, UTC),
            is_warning=problem is not None,
        )
        try:
            self._cluster.tell(known.deployment, happening)
        except (DependencyDown, Conflict) as error:
            log.warning("event_not_taken", pool=decision.id, problem=str(error))

    def close(self) -> None:
        """The pods stay: whoever sizes them next goes on from there."""

    def _bring_to(self, pool: str, known: _Pool, replicas: int) -> None:
        for _ in range(TRIES):
            scale = known.scale
            if scale is None:
                return
            plan = removal.plan(known.pods, scale.count, replicas)
            if plan == removal.Plan(scale.count):
                return
            if (problem := self._owned_by_others(known, None)) is not None:
                _complain(pool, known, problem)
                return
            for consumer in plan.drain:
                self._tell(known, consumer)
            for pod, cost in plan.costs:
                self._cluster.set_cost(pod, cost)
            if plan.count == scale.count:
                return
            if self._set(known, scale, plan.count):
                log.info("scaled", pool=pool, replicas_from=scale.count, replicas_to=plan.count)
                return
            self._look(pool, known)
        log.warning("scale_conflict", pool=pool, deployment=known.deployment, tries=TRIES)

    def _set(self, known: _Pool, scale: Scale, count: int) -> bool:
        """Change the count; False if another has changed it meanwhile."""
        before = scale.count
        for _ in range(TRIES):
            try:
                self._cluster.set_scale(known.deployment, count, scale.version)
            except Conflict:
                scale = self._cluster.scale(known.deployment)
                if scale.count != before:
                    return False
            else:
                return True
        return False

    def _tell(self, known: _Pool, consumer: str) -> None:
        known.told_s[consumer] = self._clock.mono_s()
        log.info("consumer_told_to_drain", consumer=consumer, deployment=known.deployment)
        self._crew.drain(consumer)

    def _owned_by_others(self, known: _Pool, now_s: float | None) -> str | None:
        """Without a time, an earlier answer is not believed."""
        if now_s is not None and known.unowned_s is not None and now_s - known.unowned_s < OWNERS_S:
            return None
        owners = sorted(self._cluster.owners(known.deployment))
        if not owners:
            known.unowned_s = self._clock.mono_s()
            return None
        known.unowned_s = None
        return (
            f"{' and '.join(owners)} in namespace {self._cluster.namespace} sizes the Deployment {known.deployment}"
            " too: two would undo each other's work. Delete it, or set autoscaler.target to keda or metric."
        )

    def _look(self, pool: str, known: _Pool) -> None:
        now_s = self._clock.mono_s()
        known.scale = self._cluster.scale(known.deployment)
        known.told_s = {consumer: told_s for consumer, told_s in known.told_s.items() if now_s - told_s < TOLD_S}
        reports = {_host(report.consumer): report for report in self._crew.reports() if report.pool == pool}
        found = self._cluster.pods(known.scale.labels)
        known.pods = [_pod(pod, reports, known.told_s) for pod in found if pod.metadata]


def _complain(pool: str, known: _Pool, problem: str | None) -> None:
    """Note what is in the way, and say it once."""
    if problem is not None and problem != known.problem:
        log.error("not_sized", pool=pool, deployment=known.deployment, problem=problem)
    known.problem = problem


def _host(consumer: str) -> str:
    """The pod of a consumer, whose id is by default its host's name, its process and a random word."""
    parts = consumer.rsplit("-", 2)
    return parts[0] if len(parts) == 3 and parts[1].isdigit() else consumer


def _pod(found: core_v1.Pod, reports: Mapping[str, Telemetry], told: Iterable[str]) -> Pod:
    meta, spec, status = found.metadata, found.spec, found.status
    name, labels, notes = (meta.name or "", meta.labels or {}, meta.annotations or {}) if meta else ("", {}, {})
    containers = (status.containerStatuses or []) if status else []
    conditions = (status.conditions or []) if status else []
    report = reports.get(name)
    return Pod(
        name=name,
        template=labels.get(TEMPLATE_LABEL, ""),
        is_assigned=bool(spec and spec.nodeName),
        phase=(status.phase if status else None) or "Unknown",
        is_ready=any(each.type == "Ready" and each.status == "True" for each in conditions),
        has_started=any(each.state and each.state.running for each in containers),
        is_unschedulable=any(each.type == "PodScheduled" and each.reason == "Unschedulable" for each in conditions),
        work=None if report is None else _work(report, told),
        deletion_cost=int(notes.get(COST_ANNOTATION, "0")),
    )


def _work(report: Telemetry, told: Iterable[str]) -> Work:
    return Work(
        consumer=report.consumer,
        is_told=report.consumer in told,
        is_draining=report.state != "ready",
        running_requests=report.inflight_requests,
        running_units=report.inflight_units,
    )
