"""What the autoscaler asks of Kubernetes, and how refusals are said.  Knows calls, not when to make them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import httpx2
from lightkube import ApiError, Client, ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.autoscaling_v2 import HorizontalPodAutoscaler
from lightkube.resources.core_v1 import Event, Pod
from lightkube.types import PatchType

from topics.errors import DependencyDown

FIELD_MANAGER = "rampmeter-autoscaler"
MAX_MESSAGE = 1024
"""Characters that an event may have."""
COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_SCALE = Deployment.Scale
_SCALED_OBJECT = create_namespaced_resource("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")
_NOT_FOUND, _CONFLICT = 404, 409

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a Role must allow."""

    group: str
    resource: str
    verbs: tuple[str, ...]


RULES = (
    Rule("apps", "deployments/scale", ("get", "patch")),
    Rule("", "pods", ("list", "patch")),
    Rule("", "events", ("create",)),
    Rule("autoscaling", "horizontalpodautoscalers", ("list",)),
    Rule("keda.sh", "scaledobjects", ("list",)),
)
"""All that is ever called; the Role of the deployment is made from it."""


@dataclass(frozen=True, slots=True)
class Happening:
    """What an event tells."""

    reason: str
    """One word in CamelCase."""
    message: str
    at: datetime
    is_warning: bool = False


class Conflict(Exception):
    """The scale has changed since it was read."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many pods a Deployment shall have."""

    count: int
    version: str
    labels: Mapping[str, str]
    """Of its pods."""


class Cluster:
    """One namespace.  Raises DependencyDown with what is missing for everything but a conflict."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def namespace(self) -> str:
        """Where the Deployments are."""
        return str(self._client.namespace)

    def scale(self, deployment: str) -> Scale:
        """Read the count."""
        found = self._ask(_rule("deployments/scale", "get"), deployment, lambda: self._client.get(_SCALE, deployment))
        version = (found.metadata.resourceVersion if found.metadata else None) or ""
        # The real API leaves a count of zero out.
        count = (found.spec.replicas if found.spec else None) or 0
        return Scale(count, version, _labels(found.status.selector if found.status else None, deployment))

    def set_scale(self, deployment: str, count: int, version: str) -> None:
        """Change the count if nobody else has since `version`; raises Conflict if so."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": count}}
        self._ask(
            _rule("deployments/scale", "patch"),
            deployment,
            lambda: self._client.patch(
                _SCALE, deployment, body, patch_type=PatchType.MERGE, field_manager=FIELD_MANAGER
            ),
        )

    def pods(self, labels: Mapping[str, str]) -> list[Pod]:
        """Those that run or will, without those that are being deleted or have ended."""
        found = self._ask(_rule("pods", "list"), "pods", lambda: list(self._client.list(Pod, labels=dict(labels))))
        return [pod for pod in found if _is_active(pod)]

    def set_cost(self, pod: str, cost: int) -> None:
        """Set what its deletion costs; one that is already gone needs none."""
        body = {"metadata": {"annotations": {COST_ANNOTATION: str(cost)}}}
        try:
            self._client.patch(Pod, pod, body, patch_type=PatchType.MERGE, field_manager=FIELD_MANAGER)
        except httpx2.HTTPError as error:
            if _status(error) != _NOT_FOUND:
                raise _refusal(error, _rule("pods", "patch"), pod, self.namespace) from error

    def tell(self, deployment: str, happening: Happening) -> None:
        """Make an event of the Deployment, as `kubectl describe` shows it."""
        event = Event(
            metadata=ObjectMeta(generateName=f"{deployment}."),
            involvedObject=ObjectReference(
                apiVersion="apps/v1", kind="Deployment", name=deployment, namespace=self.namespace
            ),
            reason=happening.reason,
            message=happening.message[:MAX_MESSAGE],
            type="Warning" if happening.is_warning else "Normal",
            source=EventSource(component=FIELD_MANAGER),
            reportingComponent=FIELD_MANAGER,
            firstTimestamp=happening.at,
            lastTimestamp=happening.at,
            count=1,
        )
        self._ask(_rule("events", "create"), deployment, lambda: self._client.create(event))

    def owners(self, deployment: str) -> Iterator[str]:
        """Who else sizes it."""
        hpas = self._ask(
            _rule("horizontalpodautoscalers", "list"), "HPAs", lambda: list(self._client.list(HorizontalPodAutoscaler))
        )
        for hpa in hpas:
            target = hpa.spec.scaleTargetRef if hpa.spec else None
            if target and (target.kind, target.name) == ("Deployment", deployment):
                yield f"the HorizontalPodAutoscaler {hpa.metadata.name if hpa.metadata else ''}"
        for scaled in self._scaled_objects():
            kept = scaled["spec"]["scaleTargetRef"]
            if (kept.get("kind", "Deployment"), kept["name"]) == ("Deployment", deployment):
                yield f"the ScaledObject {scaled['metadata']['name']}"

    def _scaled_objects(self) -> list[dict[str, Any]]:
        """None where KEDA is not installed."""
        try:
            return [dict(found) for found in self._client.list(_SCALED_OBJECT)]
        except httpx2.HTTPError as error:
            if _status(error) == _NOT_FOUND:
                return []
            raise _refusal(error, _rule("scaledobjects", "list"), "ScaledObjects", self.namespace) from error

    def _ask(self, rule: Rule, name: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except httpx2.HTTPError as error:
            if _status(error) == _CONFLICT:
                raise Conflict from error
            raise _refusal(error, rule, name, self.namespace) from error


def connect(namespace: str | None, timeout_s: float) -> Cluster:
    """Connect as the pod's service account, or as the kubeconfig says; raises DependencyDown without either."""
    try:
        return Cluster(Client(namespace=namespace, timeout=httpx2.Timeout(timeout_s), field_manager=FIELD_MANAGER))
    except (ConfigError, OSError) as error:
        raise DependencyDown(
            f"no way to Kubernetes is configured: {error}",
            "kubeconfig",
            "Run in a pod with a ServiceAccount, or set KUBECONFIG.",
        ) from error


def _rule(resource: str, verb: str) -> Rule:
    """The one verb of it; a call without a rule is a bug."""
    rule = next(rule for rule in RULES if rule.resource == resource)
    return Rule(rule.group, rule.resource, (rule.verbs[rule.verbs.index(verb)],))


def _refusal(error: httpx2.HTTPError, rule: Rule, name: str, namespace: str) -> DependencyDown:
    where = f"{name} in namespace {namespace}"
    match _status(error):
        case 403:
            group = f" of the API group {rule.group}" if rule.group else ""
            fix = f"Its Role must allow {rule.verbs[0]} on {rule.resource}{group}."
            return DependencyDown("Kubernetes does not allow it to this ServiceAccount", where, fix)
        case 404:
            fix = "Create it (`rampmeter config deployment`), or name another with autoscaler.pools.<pool>.deployment."
            return DependencyDown("Kubernetes knows no such Deployment", where, fix)
        case None:
            fix = "Look at the way to the API server; the counts stay as they are until then."
            return DependencyDown(f"Kubernetes does not answer: {type(error).__name__}", where, fix)
        case status:
            return DependencyDown(f"Kubernetes answers {status}: {error}", where, "Look at its message.")


def _status(error: httpx2.HTTPError) -> int | None:
    """None: no answer came."""
    if isinstance(error, ApiError) and error.status.code is not None:
        return error.status.code
    return error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else None


def _labels(selector: str | None, deployment: str) -> dict[str, str]:
    """Of a selector by labels alone, as our manifests have it."""
    pairs = [part.partition("=") for part in (selector or "").split(",")]
    if not all(name and sign and " " not in name + value for name, sign, value in pairs):
        fix = "Give it a selector with matchLabels only."
        raise DependencyDown(f"the selector {selector!r} is not one of labels alone", deployment, fix)
    return {name: value for name, _, value in pairs}


def _is_active(pod: Pod) -> bool:
    phase = pod.status.phase if pod.status else None
    return phase not in {"Succeeded", "Failed"} and not (pod.metadata and pod.metadata.deletionTimestamp)
