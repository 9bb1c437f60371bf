"""What sizing the fleet by work is worth, in virtual time: `python -m tests.benchmarks.autoscaling`.

One pipeline, four ways to size it: held at what the peak needs, ours, KEDA on the group's lag, the HPA on the queue's
length (`rampmeter.simulation.rival_scalers`).  Loads: `w4`, the rates of fourteen days of ServeGen, a day in ten
minutes; `slow`, the first of them in an hour; `step`, four times the load at once, and back; `square`, that again and
again; 100 huge and 100 tiny requests.
Requests are those of the Azure 2023 mix where it is found beside the checkout, else generated with its statistics.
"""

import argparse
import csv
import json
import math
import statistics
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from autoscaler.settings import Autoscaler
from rampmeter import workload
from rampmeter.simulation import scenario, workloads
from rampmeter.simulation.scaling import Scaling
from rampmeter.simulation.scenario import Fleet
from rampmeter.workload import Row
from tests.benchmarks import autoscaling_plot

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "azure2023_mixed.csv"
RATES = TRACE.parent / "servegen" / "m-large_aggregate_rate.csv"
ROWS = 6000
MOST_ENGINES, PEAK_RATIO, COLD_S = 10, 0.85, 30.0
WINDOWS_PER_DAY, DAY_S, DAYS = 144, 600.0, 14
SLOW_DAYS, SLOW_DAY_S = 1, 3600.0
"""A cold start and the five minutes of others are a smaller part of a longer day."""
QUIET_ENGINES, FACTOR, PHASE_S = 1.36, 4.0, 180.0
"""Load of the quiet phases in engines at saturation, how much more the others are, and how long each is."""
SCALERS = ("static", "ours", "keda-lag", "keda-tuned", "hpa-queue")
POLICY = "ours-unshed"
HUGE, TINY = (6000, 600), (60, 20)
"""Tokens of prompt and output."""
HUNDRED_AT_S, LOOK_S = 29.5, 60.0


@dataclass(frozen=True)
class Load:
    """Requests, and when their rate changed at once."""

    name: str
    rows: list[Row]
    edges_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bench:
    """Rows to draw from, and what an engine and the fleet can."""

    rows: list[Row]
    engine_per_s: float
    most: int = MOST_ENGINES
    seed: int = 1


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.autoscaling", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON as the last line of stdout")
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--day-s", type=float, default=DAY_S, help="simulated seconds of a day")
    parser.add_argument("--seeds", type=int, default=3, help="of step and square")
    parser.add_argument("--only", action="append", choices=("w4", "slow", "step", "square", "hundred"))
    parser.add_argument("--svg", type=Path, help="where to draw two days of w4")
    options = parser.parse_args()
    parts = {
        "w4": lambda: fourteen_days(bench, options.days, options.day_s),
        "slow": lambda: compare(bench, w4(bench, SLOW_DAYS, SLOW_DAY_S)),
        "step": lambda: spread_over(bench, step, options.seeds),
        "square": lambda: spread_over(bench, square, options.seeds),
        "hundred": lambda: hundred(bench),
    }
    bench, found = prepared(), {}
    say(f"an engine completes {bench.engine_per_s:.2f} requests/s at saturation; peak over mean {peak_over_mean():.2f}")
    for name in options.only or parts:
        found[name] = parts[name]()
        print(table(name, found[name]), flush=True)
    if options.svg:
        options.svg.write_text(
            autoscaling_plot.drawn(runs_of(bench, w4(bench, 2, options.day_s), autoscaling_plot.STYLES))
        )
    if options.json:
        print(json.dumps(found))


def say(text):
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def prepared(most=MOST_ENGINES, rows=ROWS):
    """The first rows of the trace, or as many generated ones."""
    drawn = workload.read_trace(TRACE, rows) if TRACE.exists() else workload.generate_count(rows)
    asked = scenario.priced(drawn[:4000], Fleet().settings)
    return Bench(drawn, scenario.saturation_per_s(asked, Fleet(engines=most)) / most, most)


def day_rates():
    """Requests a second by window of fourteen days, or of a sine with nearly the same peak over its mean."""
    if not RATES.exists():
        windows = range(DAYS * WINDOWS_PER_DAY)
        return [2 - 1.98 * math.cos(2 * math.pi * window / WINDOWS_PER_DAY) for window in windows]
    with RATES.open(newline="", encoding="utf-8") as file:
        return [float(row["requests_per_s"]) for row in csv.DictReader(file)]


def peak_over_mean():
    rates = day_rates()
    return max(rates) / statistics.fmean(rates)


def w4(bench, days, day_s=DAY_S, first_day=0):
    """Days of the curve whose peak over all days is what the whole fleet can at 85 %."""
    rates = day_rates()
    peak_per_s = PEAK_RATIO * bench.most * bench.engine_per_s
    some = rates[first_day * WINDOWS_PER_DAY : (first_day + days) * WINDOWS_PER_DAY]
    scaled = [rate * peak_per_s / max(rates) for rate in some]
    return Load("w4", workloads.by_rate(bench.rows, scaled, day_s / WINDOWS_PER_DAY, bench.seed))


def step(bench):
    """Quiet, four times as much, quiet for long."""
    return _phases(bench, "step", (1, FACTOR, 1, 1))


def square(bench):
    """Quiet and four times as much in turns."""
    return _phases(bench, "square", (1, FACTOR) * 3)


def _phases(bench, name, factors):
    """Phases begin off the beat of polls, elsewhere for each seed."""
    first_s = PHASE_S + 7.0 * bench.seed
    quiet_per_s = QUIET_ENGINES * bench.engine_per_s
    seconds = [quiet_per_s * factors[0]] * round(first_s)
    edges_s = [first_s]
    for factor in factors[1:]:
        seconds += [quiet_per_s * factor] * round(PHASE_S)
        edges_s.append(edges_s[-1] + PHASE_S)
    changed = [at_s for at_s, (one, other) in zip(edges_s, pairwise(factors), strict=False) if one != other]
    return Load(name, workloads.by_rate(bench.rows, seconds, 1.0, bench.seed), tuple(changed))


def fleets(bench, engines):
    """By scaler, what it begins with and may have.  All begin with the same."""
    ours = Scaling(1, bench.most, COLD_S, Autoscaler(cold_start_s=COLD_S))
    scalings = {
        "ours": ours,
        "keda-lag": replace(ours, rule="keda-lag"),
        "keda-tuned": replace(ours, rule="keda-tuned"),
        "hpa-queue": replace(ours, rule="hpa-queue", min_replicas=2),
    }
    fleet = Fleet(engines=bench.most, seed=bench.seed)
    return {name: replace(fleet, engines=engines, scaling=scaling) for name, scaling in scalings.items()} | {
        "static": fleet
    }


def fourteen_days(bench, days, day_s):
    """Figures of `w4`, and of the smallest fleet of fixed size that is as good as ours."""
    load = w4(bench, days, day_s)
    say(f"w4: {len(load.rows)} requests in {days} days of {day_s:g} s")
    found = compare(bench, load)
    say(json.dumps(found))
    return {**found, "static, as good as ours": smallest_static(bench, load, found["ours"]["goodput_ratio"])}


def spread_over(bench, make, seeds):
    """Figures of a load, each its median, least and most over seeds."""
    runs = [compare(other, make(other)) for other in (replace(bench, seed=n + 1) for n in range(seeds))]
    return {name: spread([run[name] for run in runs]) for name in SCALERS}


def runs_of(bench, load, names=SCALERS):
    """One run by scaler."""
    asked = scenario.priced(load.rows, Fleet().settings)
    span_s = load.rows[-1].arrival_s - load.rows[0].arrival_s
    by_name = fleets(bench, engines=2)
    return {name: scenario.run(asked, POLICY, 1.0, by_name[name], len(asked) / span_s) for name in names}


def compare(bench, load, names=SCALERS):
    """Figures by scaler.  What a fleet of fixed size costs needs no run."""
    runs = runs_of(bench, load, names)
    held_s = bench.most * (load.rows[-1].arrival_s - load.rows[0].arrival_s)
    found = {name: figures(run, load, held_s) for name, run in runs.items()}
    say(f"{load.name}: seed {bench.seed}")
    return found


def figures(run, load, static_s):
    """What is compared.  Engines are paid from their order on, cold start and drain included."""
    all_of_it, turns = run.figures(), turns_of(run.orders)
    return {
        "engine_s": round(engine_s(run)),
        "engine_s_ratio": engine_s(run) / static_s,
        "goodput_ratio": all_of_it.goodput_ratio,
        "short_goodput_ratio": all_of_it.goodput_by_class["short"],
        "long_goodput_ratio": all_of_it.goodput_by_class["long"],
        "short_ttft_p99_s": all_of_it.ttft_s["short"]["p99"],
        "most": max(count for _, count in run.orders),
        "orders": len(run.orders) - 1,
        "turns": turns,
        "turns_per_edge": turns / len(load.edges_s) if load.edges_s else None,
        "detect_s": detect_s(run.orders, load.edges_s),
    }


def engine_s(run):
    """Engine seconds until the last request arrived: what comes after tells how a run ends, not how it is sized."""
    end_s = max(job.arrived_s for job in run.jobs)
    steps = [(at_s, count) for at_s, count in run.held if at_s < end_s]
    return sum((later_s - at_s) * count for (at_s, count), (later_s, _) in pairwise([*steps, (end_s, 0)]))


def turns_of(orders):
    """How often the direction of orders changed."""
    moves = [count > before for (_, before), (_, count) in pairwise(orders) if count != before]
    return sum(one != other for one, other in pairwise(moves))


def detect_s(orders, edges_s):
    """From a rise to the first order of more: the mean over rises, a missed one counts as a phase."""
    if not edges_s or len(orders) == 1:
        return None
    rises = edges_s[::2]
    grown = [at_s for (_, before), (at_s, count) in pairwise(orders) if count > before]
    return statistics.fmean(
        min([at_s - edge_s for at_s in grown if edge_s <= at_s < edge_s + PHASE_S], default=PHASE_S) for edge_s in rises
    )


def smallest_static(bench, load, goodput_ratio):
    """The smallest fleet of fixed size that is as good as that."""
    asked = scenario.priced(load.rows, Fleet().settings)
    span_s = load.rows[-1].arrival_s - load.rows[0].arrival_s
    best = None
    for engines in range(bench.most - 1, 0, -1):
        run = scenario.run(asked, POLICY, 1.0, Fleet(engines=engines, seed=bench.seed), len(asked) / span_s)
        if run.figures().goodput_ratio < goodput_ratio:
            break
        best = figures(run, load, engine_s(run) * bench.most / engines)
        say(f"w4: {engines} engines are as good")
    return best


def hundred(bench, names=SCALERS):
    """Most replicas ordered within a minute for 100 requests at once, huge or tiny, just before a poll."""
    found = {}
    for size, (prompt, output) in (("huge", HUGE), ("tiny", TINY)):
        rows = [Row(0.0, 50, 10, "first")]
        rows += [Row(HUNDRED_AT_S + n / 1000, prompt, output, size) for n in range(100)]
        asked = scenario.priced(rows, Fleet().settings)
        for name in names:
            fleet = fleets(bench, engines=2)[name]
            run = scenario.run(asked, POLICY, 1.0, fleet, len(asked) / rows[-1].arrival_s)
            counts = [count for at_s, count in run.orders if HUNDRED_AT_S <= at_s <= HUNDRED_AT_S + LOOK_S]
            found.setdefault(name, {})[size] = max(counts, default=fleet.engines)
    return found


def spread(runs):
    """Median, least and most of each figure."""
    known = {name: [run[name] for run in runs if run[name] is not None] for name in runs[0]}
    return {name: [statistics.median(n), min(n), max(n)] if n else None for name, n in known.items()}


def table(name, figures):
    """Markdown: one row a scaler."""
    names = list(next(iter(figures.values())))
    lines = [f"\n### {name}\n", f"| scaler | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    lines += [f"| {scaler} | {' | '.join(map(_cell, row.values()))} |" for scaler, row in figures.items() if row]
    return "\n".join(lines)


def _cell(value):
    if value is None:
        return "-"
    if isinstance(value, list):
        low, high = _cell(value[1]), _cell(value[2])
        return _cell(value[0]) if low == high else f"{_cell(value[0])} ({low}-{high})"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


if __name__ == "__main__":
    main()
