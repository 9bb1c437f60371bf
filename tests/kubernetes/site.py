"""A namespace of the control plane with a pool's Deployment, and what the consumers in its pods say of themselves."""

import time

from lightkube import codecs
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

from autoscaler.cluster import Cluster
from autoscaler.settings import default_deployment
from autoscaler.targets.kubernetes import Crew, KubernetesTarget
from docker import render
from gpu_consumers.settings import GpuSettings
from rampmeter import deployment
from rampmeter.manifests import access
from rampmeter.manifests.services import AUTOSCALER
from rampmeter.manifests.values import Values
from tests.support.clock import FakeClock
from topics.records import Role
from topics.telemetry import Telemetry

POOL = "default"
DEPLOYMENT = default_deployment(POOL)
LIMIT_S = 90


def account(namespace):
    return f"system:serviceaccount:{namespace}:{AUTOSCALER}"


class Site:
    """A namespace with the Role and a Deployment of consumers, and what those say of themselves."""

    def __init__(self, plane, namespace, machine=render.SIMULATED):
        self.plane, self.namespace = plane, namespace
        self.values = Values(namespace=namespace)
        self.admin = plane.client(namespace=namespace)
        self.scaler = plane.client(account(namespace), namespace)
        self.states, self.told, self.clock = {}, [], FakeClock()
        plane.make_namespace(namespace)
        consumers = deployment.of_role(GpuSettings(), "none.invalid/c", POOL, Role.GENERAL, machine)
        self.apply(*access.role(self.values), consumers)

    def apply(self, *documents):
        for document in documents:
            self.admin.apply(codecs.from_dict(document), field_manager="test")

    def target(self):
        crew = Crew(self.reports, self.told.append)
        return KubernetesTarget({POOL: DEPLOYMENT}, Cluster(self.scaler), crew, self.clock)

    def reports(self):
        for pod in self.pods():
            state, running = self.states.get(pod, ("ready", 0))
            yield Telemetry(
                consumer=self.consumer(pod), pool=POOL, state=state, at_s=1.0,
                inflight_requests=running, inflight_units=100.0 * running,
            )  # fmt: skip

    def consumer(self, pod):
        return f"{pod}-7-ab12cd"

    def pods(self):
        found = self.admin.list(Pod, labels={"rampmeter/pool": POOL})
        return {pod.metadata.name: pod for pod in found if not pod.metadata.deletionTimestamp}

    @property
    def count(self):
        return self.admin.get(Deployment.Scale, DEPLOYMENT).spec.replicas or 0

    def set_count(self, count):
        body = {"spec": {"replicas": count}}
        self.admin.patch(Deployment.Scale, DEPLOYMENT, body, patch_type=PatchType.MERGE)

    def obey(self):
        """Whoever was told drains, and is no longer ready, as its probe says."""
        for pod in self.pods():
            if self.consumer(pod) in self.told and self.states.get(pod, ("ready",))[0] == "ready":
                self.states[pod] = ("draining", self.states.get(pod, ("", 0))[1])
                conditions = [{"type": "Ready", "status": "False"}]
                self.admin.patch(Pod.Status, pod, {"status": {"conditions": conditions}})

    def come_to(self, target, wanted, count):
        """Make rounds until there are `count` pods, all running."""
        until_s = time.monotonic() + LIMIT_S
        while True:
            assert target.problem(POOL) is None
            target.scale(POOL, wanted)
            self.obey()
            pods = self.pods()
            if self.count == len(pods) == count and all(pod.status.phase == "Running" for pod in pods.values()):
                return pods
            self.plane.check()
            assert time.monotonic() < until_s, (self.count, {name: pod.status.phase for name, pod in pods.items()})
            time.sleep(0.2)
