"""The target `kubernetes` against a real API, with the rights of its own Role and with the Deployments of ours."""

import time

import pytest
import yaml
from lightkube import ApiError, codecs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Event, Pod, Secret
from lightkube.resources.rbac_authorization_v1 import Role

from autoscaler.cluster import RULES
from autoscaler.target import Unstarted
from docker import render
from rampmeter import deployment
from rampmeter.manifests import access, scaling
from rampmeter.manifests.services import AUTOSCALER
from rampmeter.manifests.values import Values
from tests.kubernetes.site import DEPLOYMENT, LIMIT_S, POOL, Site
from tests.support.gpu import wait_until
from tests.unit.autoscaler.test_loop import World
from topics.errors import ConfigError
from topics.records import Decision

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_counts_follow_up_and_down_to_zero_and_back(site):
    target = site.target()
    for wanted in (3, 1, 0, 2):
        site.come_to(target, wanted, wanted)
        assert (site.count, target.problem(POOL), target.replicas(POOL)) == (wanted, None, wanted)


def test_pods_with_work_survive_until_it_is_done(site):
    target = site.target()
    names = list(site.come_to(target, 5, 5))
    site.states = {names[0]: ("ready", 4), names[2]: ("ready", 2)}
    left = site.come_to(target, 1, 2)
    assert set(left) == {names[0], names[2]}, "the idle ones went first"
    for _ in range(10):
        target.problem(POOL)
        target.scale(POOL, 1)
    assert (site.count, target.replicas(POOL)) == (2, 1)
    assert set(site.pods()) == set(left)
    site.states[names[2]] = ("draining", 0)
    assert set(site.come_to(target, 1, 1)) == {names[0]}
    assert site.consumer(names[0]) not in site.told


def test_when_demand_returns_during_a_drain_another_pod_serves(site):
    target = site.target()
    names = list(site.come_to(target, 2, 2))
    site.states = dict.fromkeys(names, ("ready", 1))
    target.problem(POOL)
    target.scale(POOL, 1)
    site.obey()
    assert set(names) < set(site.come_to(target, 2, 3))
    for name in names:
        site.states[name] = (site.states[name][0], 0)
    assert len(site.come_to(target, 2, 2)) == 2


def test_a_change_in_between_is_read_and_not_overwritten_blindly(site):
    target = site.target()
    assert target.problem(POOL) is None
    site.set_count(4)
    target.scale(POOL, 6)
    assert site.count == 6


def test_an_hpa_of_the_same_deployment_is_not_fought(site):
    target = site.target()
    site.come_to(target, 2, 2)
    site.apply(scaling.hpa(site.values, POOL))
    target.scale(POOL, 7)
    assert site.count == 2
    problem = target.problem(POOL)
    assert f"the HorizontalPodAutoscaler {DEPLOYMENT} in namespace {site.namespace} sizes" in problem
    with pytest.raises(ConfigError, match="HorizontalPodAutoscaler"):
        site.target()


def test_pods_that_find_no_node_keep_nothing_from_being_decided(plane, unused):
    site = Site(plane, next(unused), deployment.Machine())
    target = site.target()
    target.scale(POOL, 12)
    until_s = time.monotonic() + LIMIT_S
    while sum(pod.status.phase == "Running" for pod in site.pods().values()) < 8:
        assert time.monotonic() < until_s
        time.sleep(0.2)
    assert (target.problem(POOL), target.replicas(POOL)) == (None, 12)
    running = {name for name, pod in site.pods().items() if pod.status.phase == "Running"}
    assert set(site.come_to(target, 8, 8)) == running, "those without a node went first"


def test_while_pods_find_no_node_decisions_go_on_and_say_so(plane, unused):
    # Slices, since those of another test may hold the node's GPUs; two such pods fill its memory.
    site = Site(plane, next(unused), deployment.Machine(gpu_resource="nvidia.com/mig-3g.20gb", memory="400Gi"))
    world = World(site.target(), pools={POOL: {"max_replicas": 4}})
    world.lag[POOL] = 1000
    wait_until(
        lambda: world.round() == 4 and world.target.unstarted(POOL) == Unstarted(2, 2),
        "two of four run",
        limit_s=LIMIT_S,
    )
    running = {name for name, pod in site.pods().items() if pod.status.phase == "Running"}
    world.lag[POOL] = 0
    world.round()
    made = world.decisions[-1]
    assert (made.verdict, made.reason, made.inputs["unschedulable_pods"]) == ("down", "scale_down", 2)
    wait_until(lambda: world.round() and site.pods().keys() == running, "who runs is left", limit_s=LIMIT_S)


def test_a_decision_is_an_event_of_its_deployment(site):
    target = site.target()
    target.announce(
        Decision(
            id=POOL, stage="scale", verdict="up", reason="backlog", at_s=time.time(), by="autoscaler",
            inputs={"replicas_before": 1, "replicas": 2},
        )
    )  # fmt: skip
    (event,) = site.admin.list(Event, fields={"involvedObject.name": DEPLOYMENT, "reason": "Backlog"})
    assert event.message == "up: replicas_before=1, replicas=2"


@pytest.mark.parametrize(
    "call",
    [
        lambda site: site.scaler.get(Deployment, DEPLOYMENT),
        lambda site: site.scaler.patch(Deployment, DEPLOYMENT, {"spec": {"replicas": 9}}),
        lambda site: site.scaler.delete(Deployment, DEPLOYMENT),
        lambda site: site.scaler.delete(Pod, "any"),
        lambda site: site.scaler.create(Pod(metadata=ObjectMeta(name="mine"))),
        lambda site: list(site.scaler.list(Secret)),
        lambda site: list(site.scaler.list(Pod, namespace="default")),
        lambda site: site.scaler.get(Deployment.Scale, DEPLOYMENT, namespace="default"),
        lambda site: site.scaler.patch(Role, AUTOSCALER, {"rules": []}),
    ],
)
def test_the_role_denies_everything_else(plane, call, rbac_site):
    with pytest.raises(ApiError) as refusal:
        call(rbac_site)
    assert refusal.value.status.code == 403


@pytest.fixture(scope="module")
def rbac_site(plane, unused):
    return Site(plane, next(unused))


@pytest.mark.parametrize(
    "missing", [(rule, verb) for rule in RULES for verb in rule.verbs if rule.resource != "events"], ids=str
)
def test_each_right_is_needed_and_named_when_it_is_missing(plane, rbac_site, missing):
    site, (lacking, verb) = rbac_site, missing
    _, role, _ = access.role(site.values)
    for rule in role["rules"]:
        if rule["resources"] == [lacking.resource]:
            rule["verbs"] = [each for each in rule["verbs"] if each != verb] or ["none"]
    site.apply(*access.role(site.values))
    site.set_count(1)
    target = site.target()
    site.come_to(target, 1, 1)
    site.apply(role)
    site.clock.advance(60)
    words = f"Its Role must allow {verb} on {lacking.resource}"
    until_s = time.monotonic() + LIMIT_S
    while words not in str(target.problem(POOL)):
        target.scale(POOL, 0)
        site.obey()
        assert time.monotonic() < until_s
        time.sleep(0.2)
    assert site.count == 1


def test_all_that_is_shipped_is_accepted(plane):
    client = plane.client(namespace=Values().namespace)
    documents = [
        document
        for path, text in render.texts().items()
        if path.startswith(("kubernetes/base", "kubernetes/overlays/gpu/", "kubernetes/components"))
        for document in yaml.safe_load_all(text)
        if document["apiVersion"].split("/")[0] not in NOT_HERE
    ]
    assert len(documents) > 15
    for document in sorted(documents, key=lambda each: each["kind"] != "Namespace"):
        client.apply(codecs.from_dict(document), field_manager="test", force=True)


NOT_HERE = {"kustomize.config.k8s.io", "keda.sh", "monitoring.coreos.com"}
