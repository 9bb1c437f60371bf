"""A simulated run as a page for people: a table and plots, in one file without scripts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rampmeter.simulation import series
from rampmeter.simulation.figures import Figures
from rampmeter.simulation.scenario import Run
from rampmeter.simulation.series import Points
from topics.records import Length

WIDTH, HEIGHT = 860, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 30
COLOURS = ("#1f5fbf", "#c4570e")
"""First run, second run; told apart by the dash too."""

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2rem auto;padding:0 1rem;color:#1c2330;background:#fff}
h1{font-size:1.5rem;margin-bottom:.2rem} h2{font-size:1.05rem;margin:2rem 0 .2rem} p{margin:.2rem 0 .6rem;color:#4a5568}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{padding:.3rem .6rem;border-bottom:1px solid #e2e8f0;text-align:right}
th:first-child,td:first-child{text-align:left} th{font-weight:600} svg{display:block;width:100%;height:auto}
.key{display:inline-block;width:2rem;border-top:3px solid;margin:0 .4rem .25rem 0} .dashed{border-top-style:dashed}
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """One diagram: a line per run."""

    title: str
    about: str
    unit: str
    lines: Sequence[Points]
    is_log: bool = False
    most: float | None = None


def render(runs: Sequence[Run]) -> str:
    """The page; at most two runs, the first one is what it is about."""
    found = [run.figures() for run in runs]
    about = found[0]
    plots = "".join(_section(plot) for plot in _plots(runs))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Rampmeter: {escape(about.policy)} at load {about.load:g}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(about.policy)} at load {about.load:g}</h1>"
        f"<p>{about.requests:,} requests in {about.duration_s:,.0f} simulated seconds on"
        f" {about.replicas['max']} engines that complete {about.saturation_per_s:g} a second at most.</p>"
        f"{_table(found)}<p>{_legend(found)}</p>{plots}</body></html>\n"
    )


def _plots(runs: Sequence[Run]) -> list[Plot]:
    width_s = max(series.step_s(run.jobs) for run in runs)
    slo = runs[0].fleet.slo
    waits = [
        Plot(
            f"Time to first token, {n.value} requests",
            f"90th percentile by time of arrival; in time means within {slo.of(n):g} s.",
            "s",
            [series.wait(run.jobs, n, width_s) for run in runs],
            is_log=True,
        )
        for n in Length
    ]
    goodput = Plot(
        "Goodput",
        "Part of the requests that arrived then whose first token came in time; what was shed counts as missed.",
        "",
        [series.goodput(run.jobs, slo, width_s) for run in runs],
        most=1.0,
    )
    backlogs = [
        Plot(
            f"Backlog, {n.value} requests",
            "Requests that wait for an engine.",
            "",
            [series.backlog(run.jobs, n, width_s) for run in runs],
        )
        for n in Length
    ]
    replicas = Plot("Engines", "Held at that time.", "", [list(run.replicas_over_time) for run in runs])
    return [*waits, goodput, *backlogs, replicas]


def _section(plot: Plot) -> str:
    return f"<h2>{escape(plot.title)}</h2><p>{escape(plot.about)}</p>{_svg(plot)}"


def _legend(found: Sequence[Figures]) -> str:
    return "&emsp;".join(
        f'<span class="key{" dashed" if number else ""}" style="color:{COLOURS[number]}"></span>{escape(one.policy)}'
        for number, one in enumerate(found)
    )


def _table(found: Sequence[Figures]) -> str:
    rows: list[tuple[str, list[str]]] = []
    for n in Length:
        rows += [
            (f"{name}, {n.value}, {part.upper()} (s)", [_number(getattr(one, field)[n.value][part]) for one in found])
            for name, field in (("Time to first token", "ttft_s"), ("Time to the end", "e2e_s"))
            for part in ("p50", "p99")
        ]
        rows.append((f"Longest wait, {n.value} (s)", [_number(one.max_wait_s[n.value]) for one in found]))
    rows += [
        ("In time, of all requests", [f"{one.goodput_ratio:.1%}" for one in found]),
        ("Shed, of all requests", [f"{one.shed_ratio:.1%}" for one in found]),
        ("Tokens a second", [f"{one.tokens_per_s:,.0f}" for one in found]),
        ("Jain's index of busy tenants", [_number(one.jain) for one in found]),
    ]
    head = "".join(f"<th>{escape(one.policy)}</th>" for one in found)
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{value}</td>' for value in values)}</tr>" for name, values in rows
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _svg(plot: Plot) -> str:
    points = [point for line in plot.lines for point in line]
    if not points:
        return "<p>Nothing to show.</p>"
    end_s = max(at_s for at_s, _ in points) or 1.0
    ticks = _log_ticks(points) if plot.is_log else _ticks(plot.most or max(value for _, value in points) or 1.0)
    low, high = (ticks[0], ticks[-1]) if plot.is_log else (0.0, ticks[-1])

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / end_s

    def y(value: float) -> float:
        part = math.log(max(value, low) / low) / math.log(high / low) if plot.is_log else (value - low) / (high - low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - part)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">']
    for tick in ticks:
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e2e8f0"/>')
        parts.append(_text(LEFT - 8, y(tick) + 4, f"{tick:g} {plot.unit}".strip(), "end"))
    times_s = [at_s for at_s in _ticks(end_s) if at_s <= end_s]
    parts += [_text(x(at_s), HEIGHT - 8, f"{at_s:g} s", "middle") for at_s in times_s]
    for number in reversed(range(len(plot.lines))):
        path = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in plot.lines[number])
        dash = ' stroke-dasharray="6 4"' if number else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"{dash}/>')
    return "".join([*parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="#4a5568" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 to `most` or just above."""
    step = 10 ** math.floor(math.log10(most / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if most / (step * factor) <= 5)
    return [round(number * step, 10) for number in range(math.ceil(most / step - 1e-9) + 1)]


def _log_ticks(points: Points) -> list[float]:
    """Powers of ten around the values."""
    values = [value for _, value in points if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
