"""The external scaler over a real channel, as KEDA calls it."""

import queue
import threading
import time

import grpc
import pytest

from autoscaler.targets import external_scaler
from autoscaler.targets.keda import METRIC, STREAMS_BY_POOL, KedaTarget
from tests.support.clock import FakeClock
from topics.errors import DependencyDown

STALE_S = 30.0
MESSAGES = external_scaler.messages()
ANSWERS = {
    "IsActive": "IsActiveResponse",
    "StreamIsActive": "IsActiveResponse",
    "GetMetricSpec": "GetMetricSpecResponse",
    "GetMetrics": "GetMetricsResponse",
}


class Keda:
    """Its side of the channel."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def call(self, method, pool="default"):
        ref = MESSAGES["ScaledObjectRef"](name="s", namespace="n", scalerMetadata={"pool": pool})
        asked = MESSAGES["GetMetricsRequest"](scaledObjectRef=ref, metricName=METRIC) if method == "GetMetrics" else ref
        make = self.channel.unary_stream if method.startswith("Stream") else self.channel.unary_unary
        path = f"/{external_scaler.SERVICE}/{method}"
        return make(path, lambda message: message.SerializeToString(), MESSAGES[ANSWERS[method]].FromString)(asked)

    def count(self):
        (value,) = self.call("GetMetrics").metricValues
        assert value.metricName == METRIC
        assert value.metricValue == value.metricValueFloat
        return value.metricValueFloat

    def pushes(self):
        """The stream, and what it says in the order in which it comes."""
        stream, found = self.call("StreamIsActive"), queue.Queue()

        def read():
            try:
                for answer in stream:
                    found.put((time.monotonic(), answer.result))
            except grpc.RpcError as error:
                found.put((time.monotonic(), error.code()))

        threading.Thread(target=read, daemon=True).start()
        return stream, found


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def target(clock):
    target = KedaTarget(("default", "cpu"), "127.0.0.1:0", clock, STALE_S, lambda _pool: 3)
    yield target
    target.close()


@pytest.fixture
def keda(target):
    keda = Keda(target.port)
    yield keda
    keda.channel.close()


def say(target, replicas):
    """What the loop does in a round."""
    target.problem("default")
    target.scale("default", replicas)


def code(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def test_keda_reads_the_count_and_that_one_is_one_pod(target, keda):
    say(target, 4)
    (spec,) = keda.call("GetMetricSpec").metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 1, 1.0)
    assert (keda.call("IsActive").result, keda.count()) == (True, 4.0)
    say(target, 0)
    assert (keda.call("IsActive").result, keda.count()) == (False, 0.0)


@pytest.mark.parametrize("method", ["IsActive", "GetMetrics"])
def test_what_is_not_known_is_an_error_and_not_zero(target, keda, clock, method):
    assert code(lambda: keda.call(method)) is grpc.StatusCode.UNAVAILABLE
    say(target, 2)
    keda.call(method)
    clock.advance(STALE_S + 1)
    assert code(lambda: keda.call(method)) is grpc.StatusCode.UNAVAILABLE


def test_a_start_counts_the_consumers_that_are_there_and_says_nothing_before_a_reading(target, keda):
    assert target.replicas("default") == 3
    target.scale("default", 1)
    assert code(keda.count) is grpc.StatusCode.UNAVAILABLE
    say(target, target.replicas("default"))
    assert keda.count() == 3.0


def test_a_pool_that_is_not_sized_is_refused_by_name(keda):
    assert code(lambda: keda.call("GetMetricSpec", "elsewhere")) is grpc.StatusCode.NOT_FOUND


def test_a_push_says_each_change_once_and_at_once(target, keda):
    _, found = keda.pushes()
    said = []
    for replicas in (0, 0, 1, 3, 0):
        said.append(time.monotonic())
        say(target, replicas)
        time.sleep(0.05)  # each is to be seen; what follows too fast may be left out
    answers = [found.get(timeout=10) for _ in range(3)]
    assert [active for _, active in answers] == [False, True, False]
    assert answers[1][0] - said[2] < 0.9, "a push does not wait for the next look"
    target.close()
    with pytest.raises(queue.Empty):
        found.get(timeout=0.1)


def test_pushes_have_a_bound_and_questions_are_answered_beside_them(target, keda):
    say(target, 1)
    opened = [keda.pushes() for _ in range(STREAMS_BY_POOL * 2)]
    assert [found.get(timeout=10)[1] for _, found in opened] == [True] * len(opened)
    _, refused = keda.pushes()
    assert refused.get(timeout=10)[1] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert keda.count() == 1.0
    for stream, _ in opened:
        stream.cancel()


def test_an_address_that_is_taken_is_said(target, clock):
    with pytest.raises(DependencyDown, match="cannot listen"):
        KedaTarget(("default",), f"127.0.0.1:{target.port}", clock, STALE_S, lambda _pool: 0)
