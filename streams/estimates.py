"""What all workers together know of the kinds of requests and of the models' coefficients, from the estimates topic."""

import threading
from contextlib import suppress

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from structlog import get_logger

from streams import metrics
from streams.following import Follower
from streams.policy import calibration
from streams.policy.history import Kind
from streams.settings import StreamsSettings
from topics import codec, tail
from topics.clock import Clock
from topics.notes import Estimate

_log = get_logger()
_ENDS_S = 5.0
"""Too small: a slow broker leaves the end unknown.  Too large: nothing is learned while one is away."""


class Estimates(Follower):
    """Follows the compacted topic from its beginning in a thread of its own; the event loop reads, and notes its own.

    Invariant: at most `history.max_kinds` kinds are known; the one that was told of longest ago is forgotten.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock) -> None:
        """`start` begins to follow."""
        super().__init__("estimates", settings, [TopicPartition(settings.topic("estimates"), 0, OFFSET_BEGINNING)])
        self._clock, section = clock, settings.streams
        self._kept_s, self._max_kinds = section.history.kept_s, section.history.max_kinds
        self._known: dict[str, Estimate] = {}
        self._models: dict[str, Estimate] = {}
        self._coefficients = {name: model.coefficient for name, model in settings.models.items()}
        self._lock = threading.Lock()
        self._caught_up = threading.Event()
        self._ends: tail.Ends | None = None
        for name, coefficient in self._coefficients.items():
            metrics.COEFFICIENT.labels(name).set(coefficient)
        metrics.ESTIMATES.set_function(lambda: len(self._known))

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until all that was told before `start` is known; False when that takes longer."""
        return self._caught_up.wait(timeout_s)

    def of(self, tenant: str, model: str, template: str) -> Estimate | None:
        """What is known of a kind; None when that is nothing, or too old to hold."""
        known = self._known.get(f"{tenant}|{model}|{template}")
        if known is None or self._clock.wall_s() - known.at_s > self._kept_s:
            return None
        return known

    def coefficient(self, model: str) -> float:
        """The coefficient in force of a model of the settings."""
        return self._coefficients[model]

    def calibrated(self, model: str) -> Estimate | None:
        """The last calibration of a model."""
        return self._models.get(model)

    def note(self, estimate: Estimate) -> None:
        """Take in what was told; what is from the future, by its teller's clock, is from now: it must end some day."""
        estimate = msgspec.structs.replace(estimate, at_s=min(estimate.at_s, self._clock.wall_s()))
        if estimate.tenant:
            self._note_kind(Kind(estimate.tenant, estimate.model, estimate.template).key, estimate)
        elif estimate.coefficient and estimate.model in self._coefficients:
            self._note_coefficient(estimate, estimate.coefficient)

    def _note_kind(self, key: str, estimate: Estimate | None) -> None:
        with self._lock:
            self._known.pop(key, None)
            if estimate is not None:
                self._known[key] = estimate
            while len(self._known) > self._max_kinds:
                self._known.pop(next(iter(self._known)))

    def _note_coefficient(self, estimate: Estimate, coefficient: float) -> None:
        rules, model = self._settings.streams.calibration, self._settings.models[estimate.model]
        self._models[estimate.model] = estimate
        if rules.enabled and model.calibrate:
            held = calibration.bounded(coefficient, model.coefficient, rules.range_ratio)
            self._coefficients[estimate.model] = held
            metrics.COEFFICIENT.labels(estimate.model).set(held)

    def _begin(self, reader: Consumer) -> None:
        try:
            self._ends = tail.Ends(reader, self._places, _ENDS_S)
        except KafkaException as error:
            _log.warning("end_unknown", topic=self._places[0].topic, error=error.args[0].str())

    def _read(self, message: Message) -> None:
        if tail.is_end(message) if self._ends is None else self._ends.note(message):
            self._caught_up.set()
        if message.error() is not None:
            return
        value = message.value()
        if not value:
            self._note_kind((message.key() or b"").decode(errors="replace"), None)
            return
        with suppress(*codec.UNREADABLE):  # a foreign record says nothing about any kind
            self.note(codec.decode_estimate(value))
