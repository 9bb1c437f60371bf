"""The Kubernetes target against an API over HTTP."""

import pytest

from autoscaler.cluster import COST_ANNOTATION, MAX_MESSAGE, RULES, Cluster
from autoscaler.target import Unstarted
from autoscaler.targets.kubernetes import OWNERS_S, RETRY_S, Crew, KubernetesTarget
from tests.support.clock import FakeClock
from tests.support.kubernetes import NAMESPACE, FakeCluster
from topics.errors import ConfigError
from topics.records import Decision
from topics.telemetry import Telemetry

POOL, DEPLOYMENT = "default", "rampmeter-gpu-default-general"


class Site:
    """A cluster with a Deployment, its consumers, and the target between them."""

    def __init__(self):
        self.api, self.clock, self.told, self.reports = FakeCluster(), FakeClock(), [], {}
        self.api.deploy(DEPLOYMENT, 0)

    def target(self):
        crew = Crew(self.reports.values, self.told.append)
        return KubernetesTarget({POOL: DEPLOYMENT}, Cluster(self.api.client()), crew, self.clock)

    def add(self, *pods, running=0):
        for pod in pods:
            self.api.add_pod(pod)
            self.say(pod, running=running)
        self.api.counts[DEPLOYMENT] = len(self.api.pods)

    def say(self, pod, state="ready", running=0):
        consumer = f"{pod}-7-ab12cd"
        self.reports[pod] = Telemetry(
            consumer=consumer, pool=POOL, state=state, at_s=1.0, inflight_requests=running, inflight_units=running * 9.0
        )
        return consumer

    def delete(self, pod):
        del self.api.pods[pod], self.reports[pod]

    @property
    def count(self):
        return self.api.counts[DEPLOYMENT]

    def cost(self, pod):
        return self.api.pods[pod]["metadata"].get("annotations", {}).get(COST_ANNOTATION)


@pytest.fixture
def site():
    site = Site()
    yield site
    site.api.close()


def round_of(target, wanted):
    """What the loop does in a round."""
    problem = target.problem(POOL)
    target.scale(POOL, wanted)
    return problem


def test_a_count_of_zero_which_the_api_leaves_out_is_zero(site):
    target = site.target()
    assert (target.problem(POOL), target.replicas(POOL)) == (None, 0)
    round_of(target, 3)
    assert site.count == 3


def test_a_busy_pod_is_told_waited_for_and_only_then_taken(site):
    site.add("a", running=5)
    site.add("b", running=2)
    target = site.target()
    round_of(target, 1)
    assert (site.told, site.count) == (["b-7-ab12cd"], 2)
    site.say("b", "draining", running=2)
    round_of(target, 1)
    assert (site.count, site.cost("b"), target.replicas(POOL)) == (2, "-1", 1)
    site.say("b", "draining")
    round_of(target, 1)
    assert (site.count, site.cost("a"), site.cost("b")) == (1, None, "-2")
    site.delete("b")
    round_of(target, 1)
    assert (site.count, site.told) == (1, ["b-7-ab12cd"])


def test_an_order_is_not_given_again_before_its_effect_can_show(site):
    site.add("a", "b")
    target = site.target()
    round_of(target, 1)
    round_of(target, 1)
    assert len(site.told) == 1
    site.clock.advance(60)
    round_of(target, 1)
    assert site.told == ["a-7-ab12cd"] * 2


def test_a_new_life_of_the_autoscaler_knows_who_leaves(site):
    site.add("a", "b")
    site.say("b", "draining", running=1)
    target = site.target()
    assert target.replicas(POOL) == 1
    round_of(target, 1)
    assert (site.count, site.told) == (2, [])


def test_pods_that_do_not_run_and_those_without_a_node_are_counted(site):
    site.add("a", "b")
    for pod in ("starting", "homeless"):
        site.api.add_pod(pod, running=False, ready=False)
    site.api.pods["homeless"]["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    ]
    site.api.counts[DEPLOYMENT] = 5  # one is not there yet
    target = site.target()
    assert target.unstarted(POOL) == Unstarted(pending=3, unschedulable=1)
    site.api.close()
    target.problem(POOL)
    assert target.unstarted(POOL) is None


def test_a_stale_version_is_read_again(site):
    target = site.target()
    site.api.raced = 5
    assert round_of(target, 2) is None
    assert site.count == 2


def test_a_count_that_another_changed_in_between_is_where_it_goes_on_from(site):
    target = site.target()
    target.problem(POOL)
    site.add("a", "b", "c")
    site.api.version += 1
    target.scale(POOL, 2)
    assert (site.count, len(site.told)) == (3, 1), "who serves now is drained, not cut"


@pytest.mark.parametrize(
    ("resource", "name", "words"),
    [
        ("horizontalpodautoscalers", "by-cpu", "the HorizontalPodAutoscaler by-cpu"),
        ("scaledobjects", "by-lag", "the ScaledObject by-lag"),
    ],
)
def test_it_does_not_fight_with_another_that_sizes_the_deployment(site, resource, name, words):
    site.add("a")
    target = site.target()
    site.api.own(resource, name, DEPLOYMENT)
    site.api.own(resource, "of-another", "elsewhere")
    for wanted in (4, 0):
        round_of(target, wanted)
    assert (site.count, site.told) == (1, [])
    problem = target.problem(POOL)
    assert problem.startswith(f"{words} in namespace {NAMESPACE} sizes the Deployment {DEPLOYMENT} too")
    assert problem.endswith("Delete it, or set autoscaler.target to keda or metric.")
    with pytest.raises(ConfigError, match=name):
        site.target()
    site.api.objects[resource].pop(0)
    site.clock.advance(OWNERS_S)
    assert round_of(target, 4) is None
    assert site.count == 4


def test_without_keda_there_is_nobody_to_ask(site):
    site.api.has_keda = False
    assert round_of(site.target(), 1) is None
    assert site.count == 1


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (("get", "deployments/scale"), "Its Role must allow get on deployments/scale of the API group apps."),
        (("patch", "deployments/scale"), "Its Role must allow patch on deployments/scale of the API group apps."),
        (("list", "pods"), "Its Role must allow list on pods."),
        (("list", "scaledobjects"), "Its Role must allow list on scaledobjects of the API group keda.sh."),
    ],
)
def test_a_refusal_says_what_the_role_lacks_and_is_got_over(site, call, fix):
    target = site.target()
    site.api.denied.add(call)
    site.clock.advance(OWNERS_S)
    round_of(target, 2)
    assert target.problem(POOL).endswith(fix)
    assert (site.count, target.replicas(POOL)) == (0, 0)
    site.api.denied.clear()
    site.clock.advance(RETRY_S)
    assert round_of(target, 2) is None
    assert site.count == 2


def test_a_deployment_that_is_not_there_is_named_at_the_start(site):
    site.api.counts.clear()
    with pytest.raises(ConfigError, match=f"no such Deployment .{DEPLOYMENT} in namespace {NAMESPACE}"):
        site.target()


def test_an_api_that_is_away_holds_the_count(site):
    site.add("a")
    target = site.target()
    site.api.close()
    assert "Kubernetes does not answer" in round_of(target, 3)
    assert target.replicas(POOL) == 1


def decision(**inputs):
    return Decision(
        id=POOL, stage="scale", verdict="hold", reason="lag_unavailable", at_s=1.7e9, by="autoscaler", inputs=inputs
    )


def test_a_decision_is_an_event_of_its_deployment(site):
    target = site.target()
    target.announce(decision(replicas_before=2, replicas=2, lag_records=None, problem="x" * 2000))
    (event,) = site.api.events
    assert event["involvedObject"] == {
        "apiVersion": "apps/v1", "kind": "Deployment", "name": DEPLOYMENT, "namespace": NAMESPACE
    }  # fmt: skip
    assert (event["reason"], event["type"]) == ("LagUnavailable", "Warning")
    assert event["message"].startswith("hold: replicas_before=2, replicas=2, problem=xxx")
    assert len(event["message"]) == MAX_MESSAGE
    site.api.denied.add(("create", "events"))
    target.announce(decision())
    assert target.problem(POOL) is None, "an event that is not taken stops nothing"


def test_the_rules_are_all_that_is_called_and_no_more(site):
    site.add("a", "b")
    target = site.target()
    round_of(target, 1)
    site.say("a", "draining")
    round_of(target, 1)
    target.announce(decision())
    assert {(verb, rule.resource) for rule in RULES for verb in rule.verbs} == set(site.api.calls)
