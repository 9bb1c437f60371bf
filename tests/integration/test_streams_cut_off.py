"""A streams worker loses its network in the midst of its answers: whoever takes over answers, it does not any more."""

import pytest

from tests.integration.test_streams_failures import LANDING
from tests.support.proxy import Proxy, listeners
from tests.support.streams_worker import Site, StreamsWorker, answers_by_place, chat, free_port, send, wait_until
from topics.local_broker import LocalBroker
from topics.local_process import HOST

ROOMY = {"refill_units_per_s": 10**6, "burst_s": 100, "warm_up_s": 0}
RECORDS = 8000
BATCH_EVENTS = 50
UNDER_WAY = BATCH_EVENTS * len(LANDING)
"""At least what was sent before the delay and is seen after its beginning."""
DELAY_S = 0.2


@pytest.fixture
def net():
    """The network of one worker; `swallow` and then `cut`: what was on its way is lost, and nothing comes through."""
    ports = {name: free_port() for name in ("client", "controller", "one")}
    with Proxy(ports["one"]) as made:
        made.ports = ports
        yield made


@pytest.fixture
def broker(net, tmp_path):
    properties = listeners(net.ports, one=net.port)
    with LocalBroker(tmp_path / "kafka", port=net.ports["client"], properties=properties) as started:
        yield started


@pytest.fixture
def site(broker, redis_server):
    made = Site(broker, redis_server.url, 4, batch_events=BATCH_EVENTS, tenant_budget=ROOMY, delivery_s=2.0)
    yield made
    made.close()


def test_no_record_is_answered_by_a_worker_that_was_given_up_as_well(site, net, tmp_path):
    far_env = {**site.env, "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": f"{HOST}:{net.port}"}
    far = StreamsWorker(far_env, tmp_path / "far.log").start()
    near = StreamsWorker(site.env, tmp_path / "near.log")
    try:
        # All are refused, so that there are answers in whatever was on its way.
        refused = [(chat(model="gpt-9"), b"acme", [], n % 2) for n in range(RECORDS // len(LANDING))]
        replies = site.log("replies")
        origins = [origin for topic in LANDING for origin in send(site.settings, topic, refused)]
        replies.until(lambda messages: len(messages) > 20)
        # From here on an answer is seen before its sender knows of it: when one is seen, it is still on its way.
        net.delay(DELAY_S)
        before = len(replies.messages)
        replies.until(lambda messages: len(messages) > before + UNDER_WAY)
        net.swallow()
        net.cut()
        near.start()

        wait_until(lambda: site.all_is_read(LANDING), 90, near.log)
        net.heal()
        wait_until(far.is_ready, 60)
        wait_until(lambda: "answers_unsure" in far.log(), 30, far.log)
        wait_until(lambda: far.metric("rampmeter_streams_kafka_available") == 1.0, 30)
        assert set(answers_by_place(replies).values()) == {1}
        assert far.stop() == near.stop() == 0
        assert answers_by_place(replies).keys() == {origin.place for origin in origins}
    finally:
        for worker in (far, near):
            if worker.process is not None and worker.process.poll() is None:
                worker.kill()
