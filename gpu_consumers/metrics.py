"""Counters of a consumer process.  Ids and tenants are no labels; what is unknown has no series."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_consumers.claims import Verdict
from gpu_consumers.policy.selection import LANES, Lane
from topics.outcomes import Outcome
from topics.records import Length, Priority, Reply

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 640)
_JOBS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_GEN_AI_SECONDS = tuple(0.01 * 2**n for n in range(14))
_GEN_AI_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_GEN_AI_EACH = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_GEN_AI_TOKENS = tuple(4**n for n in range(14))


@dataclass(frozen=True, slots=True)
class Spans:
    """Seconds that one answered request spent; None where it did not get."""

    queue_s: float | None
    first_token_s: float | None
    whole_s: float


class GenAi:
    """The engine's runs under the names, labels and buckets of OpenTelemetry's conventions for generative AI."""

    def __init__(self, registry: CollectorRegistry, provider: str) -> None:
        """`provider` is the engine's name."""

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            named = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", *labels)
            return Histogram(f"gen_ai_{name}", text, named, buckets=buckets, registry=registry)

        seconds, first, each = _GEN_AI_SECONDS, _GEN_AI_FIRST, _GEN_AI_EACH
        self._duration = histogram(
            "server_request_duration_seconds",
            "From an attempt's start to its end.",
            seconds,
            "error_type",
        )
        self._first_token = histogram("server_time_to_first_token_seconds", "From there to its first token.", first)
        self._each_token = histogram("server_time_per_output_token_seconds", "For each token after the first.", each)
        self._tokens = histogram(
            "client_token_usage", "Tokens of an attempt that was answered.", _GEN_AI_TOKENS, "gen_ai_token_type"
        )
        self._provider = provider
        self._by_model: dict[str, tuple[Histogram, ...]] = {}

    def answered(self, reply: Reply) -> None:
        """Count the attempt of a terminal answer; one that never reached the engine is none."""
        timing, tokens = reply.timing, reply.tokens
        if timing is None or timing.started_s is None or timing.finished_s is None:
            return
        named = ("chat", self._provider, reply.model or "unknown")
        series = self._by_model.get(named[2])
        if series is None:
            series = self._by_model[named[2]] = (
                self._duration.labels(*named, ""),
                self._first_token.labels(*named),
                self._each_token.labels(*named),
                self._tokens.labels(*named, "input"),
                self._tokens.labels(*named, "output"),
            )
        duration, first_token, each_token, prompt, output = series
        is_completed = reply.outcome is Outcome.COMPLETED
        took = duration if is_completed else self._duration.labels(*named, reply.reason.value)
        took.observe(max(0.0, timing.finished_s - timing.started_s))
        if tokens is not None:
            prompt.observe(tokens.prompt)
            output.observe(tokens.output)
        if is_completed and timing.first_token_s is not None:
            first_token.observe(max(0.0, timing.first_token_s - timing.started_s))
            if tokens is not None and tokens.output > 1:
                each_token.observe(max(0.0, timing.finished_s - timing.first_token_s) / (tokens.output - 1))


class Metrics:
    """All series of the process."""

    def __init__(self, registry: CollectorRegistry, provider: str = "unknown") -> None:
        """`provider` is the engine's name."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rampmeter_gpu_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"rampmeter_gpu_{name}", text, labels, buckets=buckets, registry=registry)

        classes = ("priority", "length")
        self.by_model = counter("model_requests_total", "Terminal answers by model.", "model", "outcome")
        self.requests = counter("requests_total", "Terminal answers.", "outcome", *classes)
        self.queue_wait = histogram("queue_wait_seconds", "From the lane to the engine.", *classes)
        self.first_token = histogram("first_token_seconds", "From arrival to the first token.", *classes)
        self.end_to_end = histogram("end_to_end_seconds", "From arrival to the answer.", *classes)
        self.batch = histogram("batch_jobs", "Jobs dispatched after one claim.", buckets=_JOBS)
        self.claims = counter("claims_total", "Answers of the claim table.", "verdict")
        self.fenced = counter("fenced_total", "Results dropped since the claim was lost.")
        self.cancels = counter("cancels_total", "Cancels by where they met their request; foreign: refused.", "where")
        self.retries = counter("retries_total", "Attempts sent to a retries topic.")
        self.dead_letters = counter("dead_letters_total", "Records given up.", "reason")
        self.reply_fallbacks = counter("reply_fallbacks_total", "Replies that could not go where they should.")
        self.commits = counter("commits_total", "Offset commits.", "result")
        self.committed = Gauge(
            "rampmeter_gpu_commit_timestamp_seconds", "Unix time of the last commit; 0: none yet.", registry=registry
        )
        self.waiting = Gauge(
            "rampmeter_gpu_waiting_requests", "Fetched and waiting, by lane.", ("tier", "length"), registry=registry
        )
        self.rebalances = counter("rebalances_total", "Changes of the assignment.", "kind")
        self.pauses = counter("pauses_total", "Partitions paused since their buffer was full.")
        self._gen_ai = GenAi(registry, provider)
        self._registry = registry
        self._by_class: dict[tuple[str, str, str], tuple[Counter, Histogram, Histogram, Histogram]] = {}

        self._begin()

    def _begin(self) -> None:
        """Begin at zero what has closed labels, so that a first event is a rise and not an appearance."""
        for priority in Priority:
            for length in Length:
                for histogram in self._histograms():
                    histogram.labels(priority.value, length.value)
                for outcome in Outcome:
                    self.requests.labels(outcome.value, priority.value, length.value)
        for lane in LANES:
            self.waiting.labels(*lane)
        for family, values in (
            (self.claims, [verdict.name.lower() for verdict in Verdict]),
            (self.cancels, ["buffered", "running", "foreign"]),
            (self.commits, ["ok", "failed"]),
            (self.rebalances, ["assigned", "revoked", "lost"]),
        ):
            for value in values:
                family.labels(value)

    def commit(self, at_s: float) -> None:
        """Note a commit that the broker has."""
        self.commits.labels("ok").inc()
        self.committed.set(at_s)

    def answered(self, reply: Reply, spans: Spans) -> None:
        """Count one terminal answer."""
        key = (reply.outcome.value, reply.priority or "unknown", reply.length or "unknown")
        series = self._by_class.get(key)
        if series is None:
            made = (self.requests.labels(*key), *(h.labels(*key[1:]) for h in self._histograms()))
            series = self._by_class[key] = made  # type: ignore[assignment]
        requests, queue_wait, first_token, end_to_end = series  # type: ignore[misc]
        requests.inc()
        self.by_model.labels(reply.model or "unknown", reply.outcome.value).inc()
        if spans.queue_s is not None:
            queue_wait.observe(spans.queue_s)
        if spans.first_token_s is not None:
            first_token.observe(spans.first_token_s)
        end_to_end.observe(spans.whole_s)
        self._gen_ai.answered(reply)

    def answers(self) -> float:
        """Terminal answers so far."""
        samples = (sample for metric in self.requests.collect() for sample in metric.samples)
        return sum(sample.value for sample in samples if sample.name.endswith("_total"))

    def watch(self, readings: dict[str, tuple[str, Callable[[], float | None]]]) -> None:
        """Show these; see `Readings`."""
        self._registry.register(Readings(readings))

    def watch_lanes(self, read: Callable[[Lane], float]) -> None:
        """Show what waits on each lane, read at each scrape."""
        for lane in LANES:
            self.waiting.labels(*lane).set_function(partial(read, lane))

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A gauge that its owner sets."""
        return Gauge(f"rampmeter_gpu_{name}", text, labels, registry=self._registry)

    def _histograms(self) -> tuple[Histogram, Histogram, Histogram]:
        return self.queue_wait, self.first_token, self.end_to_end


class Readings(Collector):
    """Gauges that are read at each scrape, by name and text; a reading of None leaves its series out."""

    def __init__(self, readings: dict[str, tuple[str, Callable[[], float | None]]]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See `Collector`."""
        for name, (text, read) in self._readings.items():
            value = read()
            if value is not None:
                yield GaugeMetricFamily(f"rampmeter_gpu_{name}", text, value=value)
