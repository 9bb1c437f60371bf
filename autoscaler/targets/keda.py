"""KEDA's external scaler over gRPC: KEDA and its HPA own the counts, and ask here what they should be.

Answers come from memory, so that no question waits for Kafka.  Whether a pool runs at all is told apart from how many
it needs, so that KEDA takes it from and to zero.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
import structlog

from autoscaler.target import Unstarted
from autoscaler.targets import external_scaler
from topics.clock import Clock
from topics.errors import DependencyDown

log = structlog.get_logger()

METRIC = "rampmeter-replicas"
"""Consumers that the pool should have; one of it is one pod."""
SPARE_THREADS = 8
STREAMS_BY_POOL = 2
"""Open pushes beyond it are refused: each holds a thread."""
LOOK_S = 1.0
"""How soon a push notices that its reader has gone."""
STOP_S = 1.0


class _Told(NamedTuple):
    replicas: int
    at_s: float


class KedaTarget:
    """The loop writes what each pool should have, the server's threads read it; one lock guards both.

    What was said longer ago than `stale_s` is unknown, and an unknown count is an error to KEDA, never zero.
    """

    def __init__(
        self, pools: Collection[str], address: str, clock: Clock, stale_s: float, ready: Callable[[str], int]
    ) -> None:
        """`ready` is how many consumers of a pool there are; raises DependencyDown if the address is taken."""
        self._pools, self._clock, self._stale_s, self._ready = pools, clock, stale_s, ready
        self._told: dict[str, _Told] = {}
        self._looked: set[str] = set()
        self._changed = threading.Condition()
        self._is_open = True
        self._streams = threading.BoundedSemaphore(STREAMS_BY_POOL * len(pools))
        self._messages = external_scaler.messages()
        threads = SPARE_THREADS + STREAMS_BY_POOL * len(pools)
        self._server = grpc.server(
            ThreadPoolExecutor(threads),
            handlers=[self._handlers()],
            options=[("grpc.so_reuseport", 0)],  # else another process could take half of the questions
        )
        try:
            self.port = int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            fix = "Set autoscaler.keda_address to a free one."
            raise DependencyDown(f"the external scaler cannot listen: {error}", address, fix) from error
        self._server.start()
        log.info("keda_scaler_listens", address=address, pools=",".join(pools))

    def problem(self, pool: str) -> str | None:
        """Nothing can be in the way; from the first look on, what is said is meant."""
        self._looked.add(pool)
        return None

    def replicas(self, pool: str) -> int:
        """The count last asked for; before that, the consumers that are there."""
        told = self._told.get(pool)
        return self._ready(pool) if told is None else told.replicas

    def unstarted(self, pool: str) -> Unstarted | None:  # noqa: ARG002 - the protocol's
        """KEDA does not tell."""
        return None

    def scale(self, pool: str, replicas: int) -> None:
        """Have KEDA told; before the first look this is only a guess, which would end consumers that work."""
        if pool not in self._looked:
            return
        with self._changed:
            self._told[pool] = _Told(replicas, self._clock.mono_s())
            self._changed.notify_all()

    def close(self) -> None:
        """End all pushes and the server; the pods stay."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        self._server.stop(STOP_S).wait()

    def is_active(self, ref: Any, context: grpc.ServicerContext) -> Any:
        """Whether the pool should run at all."""
        return self._messages["IsActiveResponse"](result=self._known(self._pool(ref, context), context).replicas > 0)

    def stream_is_active(self, ref: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """The same whenever it changes; what is unknown is not sent."""
        pool = self._pool(ref, context)
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many open pushes")
        try:
            sent: bool | None = None
            while self._is_open and context.is_active():
                told = self._fresh(pool)
                if told is not None and (told.replicas > 0) != sent:
                    sent = told.replicas > 0
                    yield self._messages["IsActiveResponse"](result=sent)
                with self._changed:
                    if self._is_open and self._told.get(pool) is told:
                        self._changed.wait(LOOK_S)
        finally:
            self._streams.release()

    def get_metric_spec(self, ref: Any, context: grpc.ServicerContext) -> Any:
        """One of the metric is one pod."""
        self._pool(ref, context)
        spec = self._messages["MetricSpec"](metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return self._messages["GetMetricSpecResponse"](metricSpecs=[spec])

    def get_metrics(self, request: Any, context: grpc.ServicerContext) -> Any:
        """How many the pool should have."""
        count = self._known(self._pool(request.scaledObjectRef, context), context).replicas
        value = self._messages["MetricValue"](metricName=METRIC, metricValue=count, metricValueFloat=float(count))
        return self._messages["GetMetricsResponse"](metricValues=[value])

    def _pool(self, ref: Any, context: grpc.ServicerContext) -> str:
        name = str(ref.scalerMetadata.get("pool", "default"))
        if name not in self._pools:
            known = ", ".join(sorted(self._pools))
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"autoscaler.pools has no {name!r}, only {known}: set metadata.pool"
            )
        return name

    def _known(self, pool: str, context: grpc.ServicerContext) -> _Told:
        told = self._fresh(pool)
        if told is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"nothing is known of the pool {pool} now")
            raise AssertionError  # abort raises
        return told

    def _fresh(self, pool: str) -> _Told | None:
        told = self._told.get(pool)
        return told if told is not None and self._clock.mono_s() - told.at_s <= self._stale_s else None

    def _handlers(self) -> grpc.GenericRpcHandler:
        ref = self._messages["ScaledObjectRef"].FromString
        ask = self._messages["GetMetricsRequest"].FromString

        def wire(message: Any) -> bytes:
            return bytes(message.SerializeToString())

        return grpc.method_handlers_generic_handler(
            external_scaler.SERVICE,
            {
                "IsActive": grpc.unary_unary_rpc_method_handler(self.is_active, ref, wire),
                "StreamIsActive": grpc.unary_stream_rpc_method_handler(self.stream_is_active, ref, wire),
                "GetMetricSpec": grpc.unary_unary_rpc_method_handler(self.get_metric_spec, ref, wire),
                "GetMetrics": grpc.unary_unary_rpc_method_handler(self.get_metrics, ask, wire),
            },
        )
