"""`rampmeter reality-check`: the same requests through the real pipeline in real time and through the simulator.

Both get the same rows at the same moments, the same engines and settings, and refuse nobody.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from rampmeter import replay, simulate_command, workload
from rampmeter.output import Output
from rampmeter.replay import AGED_AFTER_S, PROMOTE_EVERY_S, SATURATION_PER_S, Replay
from rampmeter.results import Observed, ratio, rounded, shown, spread
from rampmeter.simulation import scenario
from rampmeter.simulation.baselines import Slo
from rampmeter.simulation.jobs import Job
from rampmeter.workload import Row
from topics.clock import Clock
from topics.outcomes import Outcome
from topics.records import Length, Priority

PRESET = "a100-8b"
SLO = Slo()
BOUND_RATIO = 0.25
CHECKED = ("short_ttft_p50_s", "short_ttft_p99_s", "goodput_ratio")
"""What must agree to within the bound; the rest explains."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where the time of a request to its first token went, in seconds; None is not known or not reached."""

    length: Length | None
    ttft_s: float | None
    e2e_s: float | None
    queued_s: float | None
    """From its intended moment to its admission."""
    lane_s: float | None
    """From there to the engine."""
    prefill_s: float | None
    """From there to the first token."""


class Figure(msgspec.Struct, frozen=True):
    """One figure of both; `difference_ratio` is by how much the simulated one is above the real one."""

    real: float | None
    simulated: float | None
    difference_ratio: float | None


class RealityCheck(msgspec.Struct, frozen=True):
    """The result.  `sent_late_s` tells how late the sender was at most: much of it spoils the real figures."""

    requests: int
    load: float
    engines: int
    duration_s: float
    lost: int
    sent_late_s: float
    figures: dict[str, Figure]
    over: list[str]
    """Checked figures that differ by more than the bound, or are unknown."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was asked for."""

    rows: Sequence[Row]
    load_ratio: float
    engines: int
    data_dir: Path

    @property
    def replay(self) -> Replay:
        """The same as a replay in real time, so that every setting in seconds means the same to both."""
        alike = [replace(row, tenant=row.service, priority=Priority.MEDIUM) for row in self.rows]
        patient = {"RAMPMETER_STREAMS__MAX_WAIT_S": json.dumps(dict.fromkeys(Priority, scenario.NO_LIMIT_S))}
        return Replay(alike, self.load_ratio, self.engines, 1.0, "ours", False, self.data_dir, PRESET, patient)


def run(asked: Asked, clock: Clock, output: Output) -> RealityCheck:
    """Run both, the real one first."""
    both = asked.replay
    observed = replay.measure(both, clock, output).observed
    real, there = figures_of(spans_of(observed)), figures_of(list(map(span, simulated(both))))
    figures = {name: figure(value, there[name]) for name, value in real.items()}
    return RealityCheck(
        requests=len(both.rows),
        load=asked.load_ratio,
        engines=asked.engines,
        duration_s=round(workload.paced(both.rows, both.rate_per_s)[-1].arrival_s, 1),
        lost=observed.lost,
        sent_late_s=round(observed.late_s, 4),
        figures=figures,
        over=over(figures),
    )


def simulated(asked: Replay) -> Sequence[Job]:
    """What the simulator makes of a replay."""
    fleet = simulate_command.fleet(asked.preset, asked.engines, seed=1)
    promotion = {"aged_after_s": AGED_AFTER_S, "promote_every_s": PROMOTE_EVERY_S}
    settings = fleet.settings.model_copy(update={"streams": fleet.settings.streams.model_copy(update=promotion)})
    fleet = replace(fleet, settings=settings)
    saturation_per_s = SATURATION_PER_S[asked.preset] * asked.engines
    return scenario.run(
        scenario.priced(asked.rows, settings), "ours-unshed", asked.load_ratio, fleet, saturation_per_s
    ).jobs


def spans_of(observed: Observed) -> list[Span]:
    """Those of the requests that were really sent, all of them."""
    return [_span_of(observed, request_id) for request_id in observed.intended_s]


def span(job: Job) -> Span:
    """That of a simulated request, which always ends."""
    return Span(
        job.asked.length,
        job.first_token_s - job.arrived_s,
        job.finished_s - job.arrived_s,
        job.admitted_s - job.arrived_s,
        job.started_s - job.admitted_s,
        job.first_token_s - job.started_s,
    )


def figures_of(spans: Sequence[Span]) -> dict[str, float | None]:
    """The figures of either run: of all that ended, and `goodput_ratio` of all."""
    good = [one for one in spans if one.ttft_s is not None and one.length and one.ttft_s <= SLO.of(one.length)]
    shorts = [one for one in spans if one.length is Length.SHORT]
    found: dict[str, float | None] = {"short_ratio": len(shorts) / len(spans), "goodput_ratio": len(good) / len(spans)}
    for length in Length:
        mine = [one for one in spans if one.length is length]
        found |= _quantiles(f"{length}_ttft", [one.ttft_s for one in mine])
        found |= _quantiles(f"{length}_e2e", [one.e2e_s for one in mine])
    for part in ("queued", "lane", "prefill"):
        found |= _quantiles(f"short_{part}", [getattr(one, f"{part}_s") for one in shorts])
    return {name: rounded(value) for name, value in found.items()}


def figure(real: float | None, there: float | None) -> Figure:
    """One figure of both."""
    return Figure(real, there, ratio(there, real))


def over(figures: Mapping[str, Figure]) -> list[str]:
    """Which checked figures differ by more than the bound; what is unknown does not agree."""
    ratios = {name: figures[name].difference_ratio for name in CHECKED}
    return [name for name, ratio in ratios.items() if ratio is None or abs(ratio) > BOUND_RATIO]


def show(found: RealityCheck, output: Output) -> None:
    """Print the result: one line of JSON, or a table."""
    if output.as_json:
        output.result(found)
        return
    rows = [
        (name, *(shown(value) for value in (figure.real, figure.simulated)), _percent(figure.difference_ratio))
        for name, figure in found.figures.items()
    ]
    title = f"{found.requests} requests in {found.duration_s:g} s, load {found.load:g}, {found.engines} engines"
    output.table(title, ("", "real", "simulated", "difference"), rows)
    output.text(f"the sender was {found.sent_late_s:g} s late at most; lost: {found.lost}")
    for name in found.over:
        output.text(f"{name} differs by more than {BOUND_RATIO:.0%}")


def _span_of(observed: Observed, request_id: str) -> Span:
    at_s, answer = observed.intended_s[request_id], observed.answers.get(request_id)
    if answer is None or answer.outcome is not Outcome.COMPLETED:
        return Span(None if answer is None else answer.length, None, None, None, None, None)
    waits, first_s = answer.waits, answer.first_token_s
    prefill_s = None if waits is None else waits.first_token_s
    lane_s = None if waits is None or waits.lane_s is None else (waits.admitted_s or 0.0) + waits.lane_s
    ttft_s = None if first_s is None else first_s - at_s
    queued_s = None if None in (ttft_s, lane_s, prefill_s) else (ttft_s or 0) - (lane_s or 0) - (prefill_s or 0)
    return Span(answer.length, ttft_s, answer.received_s - at_s, queued_s, lane_s, prefill_s)


def _quantiles(name: str, values_s: Iterable[float | None]) -> dict[str, float | None]:
    return {f"{name}_{part}_s": value for part, value in spread(values_s).items()}


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:+.1%}"
