"""Usage to estimates: what kinds of requests needed, and what the models' tokens cost."""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence

from faust.types import EventT

from streams.estimates import Estimates
from streams.outbox import Outgoing
from streams.policy import calibration, history
from streams.policy.calibration import Sketch
from streams.policy.history import Kind, Sample
from streams.settings import StreamsSettings
from streams.tables import Rows, Window
from topics import codec
from topics.clock import Clock
from topics.notes import Estimate
from topics.records import Usage

_LOOK_EVERY_S = 2.0
"""Shortest time between two estimates of one kind."""


class Learning:
    """One writer, the settle agent.

    A kind's usage has one partition, so one worker knows all of it.  A model's has many: every worker measures what it
    sees, and the first whose window is full takes the step.  The others see it in the estimates and let theirs go, so
    that there is one step a window however many measure; two at once start from the same coefficient, and the last
    counts.  It needs no election, and an engine takes as long for one tenant's tokens as for another's.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock, rows: Rows, estimates: Estimates) -> None:
        """`estimates` hold what was told before, here or elsewhere."""
        self._settings, self._clock, self._rows, self._told = settings, clock, rows, estimates
        section, self._calibrated = settings.streams.history, settings.streams.calibration
        self._history = history.Rules(section.quantile, section.min_samples, refresh_s=section.kept_s / 4)
        self._calibration = calibration.Rules(
            self._calibrated.min_samples,
            self._calibrated.step_ratio,
            self._calibrated.range_ratio,
            self._calibrated.min_shared,
        )
        self._sketches: dict[str, Sketch] = {}
        self._looked_s: OrderedDict[Kind, float] = OrderedDict()
        self._topic = settings.topic("estimates")

    def take(self, usages: Sequence[tuple[EventT, Usage]]) -> list[Estimate]:
        """Count measured attempts; the estimates that are news."""
        known = [(event, usage) for event, usage in usages if usage.model in self._settings.models]
        for _, usage in known:
            self._measure(usage)
        models = {usage.model for _, usage in known}
        found = [*map(self._kind, self._count(known)), *map(self._model, sorted(models))]
        return [estimate for estimate in found if estimate is not None]

    def record(self, estimate: Estimate) -> Outgoing:
        """An estimate on its way to all workers."""
        kind = Kind(estimate.tenant, estimate.model, estimate.template)
        return Outgoing(self._topic, kind.key.encode(), codec.encode(estimate))

    def _count(self, usages: Sequence[tuple[EventT, Usage]]) -> list[Kind]:
        """Write the samples, each row once a batch; the kinds that have new ones."""
        samples: dict[tuple[Kind, Window], list[Sample]] = defaultdict(list)
        events: dict[tuple[Kind, Window], EventT] = {}
        for event, usage in usages:
            sample = history.sample(usage)
            if sample is not None:
                place = (Kind(usage.tenant, usage.model, usage.template), self._rows.history_window(event))
                samples[place].append(sample)
                events[place] = event
        for (kind, window), some in samples.items():
            self._rows.learn(events[kind, window], kind, some)
        return list(dict.fromkeys(kind for kind, _ in samples))

    def _kind(self, kind: Kind) -> Estimate | None:
        now_s = self._clock.wall_s()
        if now_s - self._looked_s.get(kind, 0.0) < _LOOK_EVERY_S:
            return None
        self._looked_s[kind] = now_s
        self._looked_s.move_to_end(kind)
        if len(self._looked_s) > self._settings.streams.history.max_kinds:
            self._looked_s.popitem(last=False)
        new = history.estimate(kind, self._rows.of_kind(kind), now_s, self._history)
        return new if history.is_news(self._told.of(*kind), new, self._history) else None

    def _measure(self, usage: Usage) -> None:
        sketch = self._sketches.get(usage.model)
        if sketch is None:
            sketch = self._sketches[usage.model] = Sketch(self._clock.wall_s())
        sketch.add(usage, self._settings.models[usage.model], self._calibration)

    def _model(self, name: str) -> Estimate | None:
        """The step of a model whose window is full."""
        now_s, sketch, model = self._clock.wall_s(), self._sketches[name], self._settings.models[name]
        if now_s - sketch.since_s < self._calibrated.every_s:
            return None
        del self._sketches[name]
        last = self._told.calibrated(name)
        if not (self._calibrated.enabled and model.calibrate) or (last is not None and last.at_s > sketch.since_s):
            return None
        current = self._told.coefficient(name)
        coefficient = calibration.next_coefficient(sketch, current, model.coefficient, self._calibration)
        if coefficient is None:
            if last is None or now_s - last.at_s < self._history.refresh_s:
                return None
            coefficient = current
        return Estimate(
            tenant="", model=name, template="", at_s=now_s, samples=sketch.samples, coefficient=round(coefficient, 6)
        )
