"""Replicas, backlog and waits of several runs over time, as one SVG."""

import math
from html import escape

from rampmeter.simulation import series
from topics.records import Length

WIDTH, PANEL, GAP = 960, 170, 46
LEFT, RIGHT, TOP = 56, 16, 44
STYLES = {"hpa-queue": ("#c4570e", "7 4"), "ours": ("#1f5fbf", "")}
"""Colour and dash; the last is drawn on top."""


def drawn(runs):
    """The picture of runs by name."""
    runs = {name: run for name, run in runs.items() if name in STYLES}
    end_s = max(job.arrived_s for run in runs.values() for job in run.jobs)
    width_s = end_s / series.BINS
    panels = [
        ("Engines held, ordered and draining ones included", {n: list(r.replicas_over_time) for n, r in runs.items()}),
        ("Requests that wait for an engine", {n: _both(r.jobs, width_s) for n, r in runs.items()}),
        (
            "Time to the first token, short requests, 90th percentile by time of arrival (s)",
            {n: series.wait(r.jobs, Length.SHORT, width_s) for n, r in runs.items()},
        ),
    ]
    height = TOP + len(panels) * (PANEL + GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12"'
        f' aria-label="Engines, backlog and waits over two simulated days, by how the fleet is sized">'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    )
    parts = [head, *_legend(runs)]
    for number, (title, lines) in enumerate(panels):
        shown = {name: _until(line, end_s) for name, line in lines.items()}
        parts += _panel(title, shown, TOP + number * (PANEL + GAP), end_s)
    return "".join([*parts, "</svg>\n"])


def _until(line, end_s):
    """The line up to there, level from its last point on."""
    seen = [point for point in line if point[0] <= end_s]
    return [*seen, (end_s, seen[-1][1])] if seen else []


def _both(jobs, width_s):
    short, long = (series.backlog(jobs, length, width_s) for length in Length)
    return [(at_s, one + other) for (at_s, one), (_, other) in zip(short, long, strict=True)]


def _legend(runs):
    for number, name in enumerate(name for name in reversed(STYLES) if name in runs):
        x, (colour, dash) = LEFT + number * 130, STYLES[name]
        yield _line(x, 16, x + 30, 16, colour, dash)
        yield _text(x + 36, 20, name, "start")


def _panel(title, lines, top, end_s):
    ticks = _ticks(max((value for line in lines.values() for _, value in line), default=1.0) or 1.0)

    def x(at_s):
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / end_s

    def y(value):
        return top + 20 + (PANEL - 20) * (1 - value / ticks[-1])

    yield _text(LEFT, top + 10, title, "start", "#1c2330")
    for tick in ticks:
        yield _line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "#e2e8f0", "", 1)
        yield _text(LEFT - 8, y(tick) + 4, f"{tick:g}", "end")
    yield from (_text(x(at_s), top + PANEL + 16, f"{at_s:g} s", "middle") for at_s in _ticks(end_s) if at_s <= end_s)
    for name, (colour, dash) in STYLES.items():
        path = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in lines.get(name, ()))
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dashed}/>'


def _ticks(most):
    """About four round numbers from 0 to `most` or just above."""
    step = 10 ** math.floor(math.log10(most / 3))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if most / (step * factor) <= 4)
    return [round(number * step, 10) for number in range(math.ceil(most / step - 1e-9) + 1)]


def _line(x1, y1, x2, y2, colour, dash, width=2):
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _text(x, y, text, anchor, colour="#4a5568"):
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
