"""The gain of scheduling, in virtual time: `make bench-scheduling`.

W1 is the Azure 2023 mix where it is found beside the checkout, else a generated load with its statistics; W2 a tenth of
it with prompts of 10,000 to 100,000 tokens; W3 its requests with Poisson arrivals; W4 its requests at the rates of two
days of ServeGen, a day in ten minutes, for an autoscaled fleet; W5 ten tenants, one of them noisy.
Each figure is the median over phase offsets, with the least and the most; ratios are taken within an offset.
"""

import argparse
import csv
import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from rampmeter import results, workload
from rampmeter.simulation import figures, scenario, workloads
from rampmeter.simulation.scaling import Scaling
from rampmeter.simulation.scenario import Fleet
from streams.policy.degrade import Limit
from topics.records import Length

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "azure2023_mixed.csv"
GENERATED_ROWS = 28_000
OFFSETS = 5
LOADS = (0.5, 0.7, 0.85, 0.95, 1.1, 1.3)
MORE_LOADS = (0.85, 1.1)
POLICIES = (
    "fifo",
    "fifo-shed",
    "strict",
    "static-split",
    "engine-priority",
    "sjf-oracle",
    "limit",
    "ours",
    "ours-unshed",
)
WORKLOADS = ("W1", "W2", "W3", "W4", "W5")
RATES = TRACE.parent / "servegen" / "m-large_aggregate_rate.csv"
WINDOWS_PER_DAY, DAYS, DAY_S = 144, 2, 600.0
MOST_ENGINES, PEAK_RATIO = 8, 0.85
BUDGET_RATIO = 0.95
BUDGET_BURST_S = 60.0
NOISE, REST = 10.0, 0.8
FLOOD_WINDOWS_S = {Length.SHORT: 60.0, Length.LONG: 300.0}
"""Of Jain's index: as wide as it takes to serve a tenant enough requests that their sizes do not decide."""


def main():
    parser = argparse.ArgumentParser(prog="make bench-scheduling", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON as the last line of stdout")
    parser.add_argument("--offsets", type=int, default=OFFSETS)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--rows", type=int, help="of the trace, from its first")
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    options = parser.parse_args()
    wanted = options.only or WORKLOADS
    rows = (
        workload.read_trace(TRACE, options.rows)
        if TRACE.exists()
        else workload.generate_count(options.rows or GENERATED_ROWS)
    )
    say(f"{len(rows)} rows {'of ' + str(TRACE.name) if TRACE.exists() else 'generated'}")
    made = {
        "W1": lambda: compare("W1", rows, options.loads, options.offsets),
        "W2": lambda: compare("W2", workloads.long_context(rows, 1), MORE_LOADS, options.offsets),
        "W3": lambda: compare("W3", workloads.poisson(rows, 1), MORE_LOADS, options.offsets),
        "W4": lambda: scaled(rows, options.offsets),
        "W5": lambda: noisy(rows, options.offsets),
    }
    found = {name: made[name]() for name in wanted}
    for name, result in found.items():
        print({"W4": scaling_table, "W5": tenant_table}.get(name, table)(name, result))
    if options.json:
        print(json.dumps(found))


def say(text):
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def compare(name, rows, loads, offsets):
    """Figures by load and policy, a list over offsets each."""
    found = {}
    for number in range(offsets):
        fleet = Fleet(seed=number + 1)
        asked = scenario.priced(scenario.shifted(rows, number / offsets), fleet.settings)
        saturation = scenario.saturation_per_s(asked, fleet)
        for load_ratio in loads:
            for policy in POLICIES:
                run = scenario.run(asked, policy, load_ratio, fleet, saturation).figures()
                found.setdefault(f"{load_ratio:g}", {}).setdefault(policy, []).append(plain(run))
            say(f"{name}: offset {number + 1} of {offsets}, load {load_ratio:g}")
    return found


def plain(run):
    """The figures that are compared."""
    return {
        "short_ttft_p50_s": run.ttft_s["short"]["p50"],
        "short_ttft_p99_s": run.ttft_s["short"]["p99"],
        "short_e2e_p99_s": run.e2e_s["short"]["p99"],
        "long_e2e_p99_s": run.e2e_s["long"]["p99"],
        "long_max_wait_s": run.max_wait_s["long"],
        "goodput_ratio": run.goodput_ratio,
        "shed_ratio": run.shed_ratio,
        "tokens_per_s": run.tokens_per_s,
        "saturation_per_s": run.saturation_per_s,
        "duration_s": run.duration_s,
    }


def day_rates(number):
    """Requests a second of two days, and of a sine with the same peak over its mean where there is no trace."""
    if not RATES.exists():
        return [2 - 1.98 * math.cos(2 * math.pi * window / WINDOWS_PER_DAY) for window in range(DAYS * WINDOWS_PER_DAY)]
    with RATES.open(newline="", encoding="utf-8") as file:
        rates = [float(row["requests_per_s"]) for row in csv.DictReader(file)]
    first = number * DAYS * WINDOWS_PER_DAY % len(rates)
    return rates[first : first + DAYS * WINDOWS_PER_DAY]


def scaled(rows, offsets):
    """Goodput and engine time of a fleet that follows the load, beside one as large as its peak needs."""
    found = []
    for number in range(offsets):
        fleet = Fleet(engines=MOST_ENGINES, seed=number + 1)
        most = PEAK_RATIO * scenario.saturation_per_s(scenario.priced(rows[:4000], fleet.settings), fleet)
        rates = day_rates(number)
        step_s = DAY_S / WINDOWS_PER_DAY
        some = workloads.by_rate(rows, [rate * most / max(rates) for rate in rates], step_s, number)
        asked, rate_per_s = scenario.priced(some, fleet.settings), len(some) / some[-1].arrival_s
        growing = replace(fleet, engines=MOST_ENGINES // 2, scaling=Scaling(1, MOST_ENGINES))
        static, scaling = (scenario.run(asked, "ours", 1.0, one, rate_per_s).figures() for one in (fleet, growing))
        found.append(
            {
                "static_goodput_ratio": static.goodput_ratio,
                "scaled_goodput_ratio": scaling.goodput_ratio,
                "engine_s_ratio": scaling.engine_s / static.engine_s,
                "peak_over_mean": max(rates) / statistics.fmean(rates),
            }
        )
        say(f"W4: offset {number + 1} of {offsets}")
    return found


def scaling_table(name, found):
    mean = {key: over([run[key] for run in found]) for key in found[0]}
    return (
        f"\n### {name}\n\nPeak over mean {mean['peak_over_mean']}. Engine time of 1 to {MOST_ENGINES} engines that"
        f" follow the load (cold start 30 s) over {MOST_ENGINES} held all the time: {mean['engine_s_ratio']};"
        f" requests in time {mean['scaled_goodput_ratio']} and {mean['static_goodput_ratio']}."
    )


def noisy(rows, offsets):
    """TTFT of nine tenants at 0.8 of their budgets, beside one at ten times its own and alone; and ten floods."""
    found = {"alone": [], "noisy": [], "fifo noisy": [], "jain": [], **{length.value: [] for length in Length}}
    for number in range(offsets):
        shifted = scenario.shifted(rows, number / offsets)
        base = scenario.priced(shifted, Fleet().settings)
        saturation = scenario.saturation_per_s(base, Fleet())
        units = statistics.fmean(one.ask.cost_units for one in base)
        budget = BUDGET_RATIO * saturation * units / workloads.TENANTS
        fleet = Fleet(seed=number + 1, tenant_budget=Limit(budget, budget * BUDGET_BURST_S))
        mixed = workloads.tenants(shifted, [NOISE, *[REST] * (workloads.TENANTS - 1)], number)
        share = BUDGET_RATIO / workloads.TENANTS
        quiet_ratio, all_ratio = (
            REST * (workloads.TENANTS - 1) * share,
            (REST * (workloads.TENANTS - 1) + NOISE) * share,
        )
        quiet = workloads.without(mixed, workloads.NOISY)
        cases = {
            "alone": (quiet, quiet_ratio, "ours"),
            "noisy": (mixed, all_ratio, "ours"),
            "fifo noisy": (mixed, all_ratio, "fifo"),
        }
        for name, (some, ratio, policy) in cases.items():
            run = scenario.run(scenario.priced(some, fleet.settings), policy, ratio, fleet, saturation)
            found[name].append(quiet_figures(run))
        flood = workloads.tenants(shifted, [1.0] * 5 + [3.0] * 5, number)
        run = scenario.run(
            scenario.priced(flood, fleet.settings), "ours-unshed", 3.0, Fleet(seed=number + 1), saturation
        )
        found["jain"].append(run.figures().jain)
        for length, window_s in FLOOD_WINDOWS_S.items():
            found[length.value].append(figures.jain(figures.of_class(run.jobs, length), window_s))
        say(f"W5: offset {number + 1} of {offsets}")
    return found


def quiet_figures(run):
    jobs = [job for job in run.jobs if job.asked.work.request.tenant != workloads.NOISY and job.first_token_s >= 0]
    shorts = figures.of_class(jobs, Length.SHORT)
    return results.spread([job.first_token_s - job.arrived_s for job in shorts])["p99"]


def over(values):
    """Median, and the least and the most."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{digits(statistics.median(known))} ({digits(min(known))}-{digits(max(known))})"


def digits(value):
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def ratios(one, other, name):
    return [b[name] / a[name] if a[name] and b[name] is not None else None for a, b in zip(one, other, strict=True)]


def efficiency(fifo, limit, ours):
    """How much of what could be gained was gained."""
    name = "short_ttft_p99_s"
    return [(f[name] - o[name]) / (f[name] - m[name]) for f, m, o in zip(fifo, limit, ours, strict=True)]


def table(name, found):
    """One row a load and policy: medians, and the least and the most over the offsets."""
    head = (
        "load", "policy", "short TTFT P99 s", "gain", "of the limit's", "short E2E P99 s", "gain", "long E2E P99 s",
        "over FIFO's", "in time", "over FIFO's", "shed", "tokens/s over FIFO's",
    )  # fmt: skip
    lines = [f"\n### {name}\n", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for load_ratio, by_policy in found.items():
        lines += [f"| {' | '.join(_row(load_ratio, policy, by_policy))} |" for policy in by_policy]
    first = next(iter(found.values()))["fifo"]
    lines.append(f"\nSaturation {over([run['saturation_per_s'] for run in first])} requests/s; {len(first)} offsets.")
    return "\n".join(lines)


def _row(load_ratio, policy, by_policy):
    fifo, runs, is_limit = by_policy["fifo"], by_policy[policy], policy == "limit"

    def figure(name):
        return over([run[name] for run in runs])

    return [
        load_ratio,
        policy,
        figure("short_ttft_p99_s"),
        over(ratios(runs, fifo, "short_ttft_p99_s")),
        over(efficiency(fifo, by_policy["limit"], runs)),
        figure("short_e2e_p99_s"),
        over(ratios(runs, fifo, "short_e2e_p99_s")),
        figure("long_e2e_p99_s"),
        over(ratios(fifo, runs, "long_e2e_p99_s")),
        *(["-"] * 4 if is_limit else [
            figure("goodput_ratio"), over(ratios(fifo, runs, "goodput_ratio")), figure("shed_ratio"),
            over(ratios(fifo, runs, "tokens_per_s")),
        ]),
    ]  # fmt: skip


def tenant_table(name, found):
    alone, beside = found["alone"], found["noisy"]
    changes = [b / a for a, b in zip(alone, beside, strict=True)]
    fifo = [b / a for a, b in zip(alone, found["fifo noisy"], strict=True)]
    return (
        f"\n### {name}\n\nShort TTFT P99 of nine tenants at 0.8 of their budgets: alone {over(alone)} s; beside one"
        f" at 10 times its budget {over(beside)} s, {over(changes)} times; under FIFO {over(found['fifo noisy'])} s,"
        f" {over(fifo)} times. Jain's index of ten tenants that flood a fleet at three times its saturation, five of"
        f" them three times as much as the others: shorts {over(found['short'])}, longs {over(found['long'])}, all cost"
        f" of tenants that have either waiting {over(found['jain'])}."
    )


if __name__ == "__main__":
    main()
