"""Real KEDA in front of the external scaler: by questions and by pushes, from zero, up, and back."""

import threading

import pytest
from lightkube.generic_resource import create_namespaced_resource

from autoscaler.targets.keda import KedaTarget
from rampmeter.manifests import scaling, services
from tests.kubernetes.binary import KEDA
from tests.kubernetes.site import DEPLOYMENT, LIMIT_S, POOL
from tests.support.clock import FakeClock
from tests.support.gpu import wait_until
from tests.support.keda import Keda
from topics.errors import ConfigError
from topics.local_process import HOST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

POLL_S, NEVER_S, STALE_S = 1, 3600, 1200.0
SCALED_OBJECT = create_namespaced_resource("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")


@pytest.fixture(scope="module")
def keda(plane):
    if not KEDA.is_built:
        pytest.skip(f"KEDA is not built: {KEDA.command} builds it (Go; up to a quarter of an hour)")
    running = Keda(KEDA.folder, plane)
    try:
        running.start()
        wait_until(running.is_serving, "KEDA's metrics are served", limit_s=LIMIT_S)
        yield running
    finally:
        running.stop()


class Asked(KedaTarget):
    """Notes that KEDA has looked.  Its own note in the ScaledObject is lost at times, by a race with its reconciler."""

    def __init__(self, *args):
        self.was_asked = threading.Event()
        super().__init__(*args)

    def is_active(self, *args):
        found = super().is_active(*args)
        self.was_asked.set()
        return found


@pytest.fixture
def decide():
    """The target, and what the loop does in a round."""
    target = Asked((POOL,), f"{HOST}:0", FakeClock(), STALE_S, lambda _pool: 0)

    def say(replicas):
        target.problem(POOL)
        target.scale(POOL, replicas)

    say.port, say.was_asked = target.port, target.was_asked
    yield say
    target.close()


def owner(site, trigger, poll_s, port):
    """Our ScaledObject, with this trigger at this scaler; down without its pause."""
    document = scaling.scaled_object(site.values, POOL)
    document["spec"] |= {"cooldownPeriod": 0, "pollingInterval": poll_s}
    document["spec"]["triggers"][0]["type"] = trigger
    document["spec"]["triggers"][0]["metadata"]["scalerAddress"] = f"{HOST}:{port}"
    return document


@pytest.mark.parametrize(("trigger", "poll_s"), [("external", POLL_S), ("external-push", NEVER_S)])
def test_keda_follows_what_was_decided_from_zero_and_back(keda, site, decide, trigger, poll_s):
    def follows(replicas):
        decide(replicas)
        wait_until(lambda: site.count == len(site.pods()) == replicas, f"{replicas} pods", limit_s=LIMIT_S)

    decide(0)
    site.set_count(0)
    # KEDA reads what the pods' environment is made of.
    site.apply(services.settings(site.values), owner(site, trigger, poll_s, decide.port))
    assert decide.was_asked.wait(LIMIT_S), "what follows is no answer to its first question"
    for replicas in (3, 5, 2):
        follows(replicas)
    with pytest.raises(ConfigError, match=r"HorizontalPodAutoscaler keda-hpa-.* and the ScaledObject"):
        site.target()
    # KEDA passes over what a push says of the end: a look takes the last pod.
    site.apply(owner(site, trigger, POLL_S, decide.port))
    follows(0)
    follows(1)
    site.admin.delete(SCALED_OBJECT, DEPLOYMENT)
