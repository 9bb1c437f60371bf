"""The autoscaler as a process with its Role, and real consumers in the pods: out under load, back without a cut."""

import json
import os
import re
import sys

import pytest

from tests.kubernetes.site import POOL, account
from tests.support import control_plane, started
from tests.support.gpu import wait_until
from topics.outcomes import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SHORTS = 300
LIMIT_S = 360
PATIENT = {"lease_s": 60, "renew_s": 2, "delivery_s": 60}
"""Nobody is killed here, and a busy machine is slow: who loses a claim or an answer for that would run work twice."""


class RealPods:
    """Each pod is a consumer process: started, asked whether it is ready, and ended as a kubelet does."""

    def __init__(self, rig):
        self._rig, self.consumers, self._ready, self._ending = rig, {}, {}, set()

    def tend(self, client, pod):
        name, consumer = pod.metadata.name, self.consumers.get(pod.metadata.name)
        if pod.metadata.deletionTimestamp:
            self._end(client, pod, consumer)
        elif consumer is None:
            self.consumers[name] = self._rig.start(
                engine="simulated", consumer_id=f"{name}-1-abc123", window_requests=4, speed=4, **PATIENT
            )
            control_plane.say_running(client, pod, is_ready=False)
        else:
            is_ready = "status=" in consumer.log() and consumer.get("readyz")[0] == 200
            if is_ready != self._ready.get(name):
                self._ready[name] = is_ready
                control_plane.say_running(client, pod, is_ready=is_ready)

    def _end(self, client, pod, consumer):
        if consumer is None or consumer.process.poll() is not None:
            control_plane.remove(client, pod)
        elif pod.metadata.name not in self._ending:
            self._ending.add(pod.metadata.name)
            consumer.process.terminate()


@pytest.fixture
def autoscaler(plane, site, tmp_path):
    config = tmp_path / "kubeconfig"
    plane.write_kubeconfig(config, account(site.namespace), site.namespace)
    pools = {POOL: {"min_replicas": 1, "max_replicas": 2}}
    variables = {
        "KUBECONFIG": str(config),
        "RAMPMETER_AUTOSCALER__TARGET": "kubernetes",
        "RAMPMETER_AUTOSCALER__POOLS": json.dumps(pools),
        "RAMPMETER_AUTOSCALER__TARGET_DRAIN_S": "5",
        "RAMPMETER_AUTOSCALER__DOWN_AFTER_S": "3",
        "RAMPMETER_AUTOSCALER__COOLDOWN_S": "1",
    }
    log_path = tmp_path / "autoscaler.log"
    with log_path.open("w") as log:
        process = started.popen([sys.executable, "-m", "autoscaler"], env={**os.environ, **variables}, stderr=log)
    yield log_path
    process.terminate()
    assert process.wait(60) == 0, log_path.read_text()


def test_a_load_brings_pods_and_its_end_takes_them_when_their_work_is_done(plane, site, rig, request):
    host = plane.hosts[site.namespace] = RealPods(rig)
    try:
        wait_until(lambda: any(each.metric("owned_partitions") for each in host.consumers.values()), "the first serves")
        log = request.getfixturevalue("autoscaler")
        rig.put(*(rig.work(f"short-{n}", output_tokens=400) for n in range(SHORTS)))
        wait_until(lambda: site.count == 2, f"a second pod:\n{log.read_text()}", limit_s=LIMIT_S)
        wait_until(lambda: len(host.consumers) == 2, "it runs", limit_s=LIMIT_S)
        wait_until(lambda: all(each.metric("inflight_requests") for each in host.consumers.values()), "both work")
        # One long answer on each: whoever goes has work that no grace period waits for.
        for partition in range(2):
            rig.put(rig.work(f"long-{partition}", output_tokens=20_000), partition=partition)
        replies = rig.wait_replies(SHORTS + 2, limit_s=LIMIT_S)
        wait_until(lambda: site.count == 1, f"one is left:\n{log.read_text()}", limit_s=LIMIT_S)
        wait_until(lambda: len(site.pods()) == 1, "its pod goes", limit_s=LIMIT_S)
        gone = next(each for name, each in host.consumers.items() if name not in site.pods())
        wait_until(lambda: gone.process.poll() is not None, "its consumer has ended", limit_s=LIMIT_S)
    finally:
        del plane.hosts[site.namespace]
    assert {reply.outcome for reply in replies.values()} == {Outcome.COMPLETED}
    assert len(rig.by_id()) == len(replies) == SHORTS + 2
    assert {reply.attempt for reply in replies.values()} == {1}
    assert "consumer_told_to_drain" in log.read_text()
    assert gone.process.returncode == 0
    assert re.search(r"aborted .*running=0", gone.log()), "nothing was cut off"
    told = [report for report in rig.telemetry() if report.state == "draining"]
    assert any(report.inflight_requests for report in told), "it had work when it was told"
