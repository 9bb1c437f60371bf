"""How the defaults of the scheduling policies were chosen: one of them changed at a time, in virtual time.

`python -m tests.benchmarks.sweeps --only long_prefill --json`.  W1 is as in `scheduling`.  The other loads are made
here, so that nothing is fitted to one trace: `long-context`, a tenth of whose prompts has 10,000 to 100,000 tokens;
`mix`, chats, whole documents and long reports; `classes`, W1's requests with priorities drawn by chance.  A figure is
the median over phase offsets.  Gains and ratios are to FIFO on the same requests, divided into the same classes.
"""

import argparse
import json
import random
import statistics
from dataclasses import dataclass, replace
from functools import cache

import msgspec

from gpu_consumers.policy import expiry
from gpu_consumers.settings import GpuSettings
from rampmeter import results, workload
from rampmeter.hindsight import overrides
from rampmeter.simulation import scenario, workloads
from rampmeter.simulation.baselines import Slo
from rampmeter.simulation.jobs import NEVER_S, Fate
from rampmeter.simulation.scenario import Fleet
from rampmeter.simulation.stations import Machine
from rampmeter.workload import Service
from streams.settings import StreamsSettings
from tests.benchmarks import batch_windows, refusal_bound
from tests.benchmarks.knobs import KNOBS
from tests.benchmarks.scheduling import TRACE, digits, say
from topics.records import Length, Priority

ROWS = {"W1": 30_000, "classes": 5000, "long-context": 2500, "mix": 2500}
OFFSETS, BATCHED_ROWS = 2, 5000
LOADS = {"W1": (0.85, 0.95, 1.1), "classes": (0.95, 1.1), "long-context": (0.85, 1.1), "mix": (0.85, 1.1)}
CHAT = Service("chat", 4.0, 1.1, 400, 1.0, 8_000, 250, 0.8, 2000)
DOCUMENTS = Service("documents", 1.0, 8.0, 6000, 1.2, 60_000, 120, 1.0, 1000)
REPORTS = Service("reports", 0.7, 3.0, 800, 0.8, 6_000, 900, 0.6, 4000)
MIX = (CHAT, DOCUMENTS, REPORTS)
MIX_PER_S = sum(service.rate_per_s for service in MIX)
PRIORITIES, PARTS = tuple(Priority), (0.2, 0.5, 0.3)
NAMES = (*KNOBS, "batch_window")
ORACLE_QUANTILE = 0.7
"""The part of all requests, cheapest first, that an oracle calls short."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Requests of a workload from one phase on, and what they are worth."""

    rows: tuple
    seed: int
    saturation_per_s: float
    true_shorts: frozenset
    """Numbers of those that an oracle calls short."""


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sweeps", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON as the last line of stdout")
    parser.add_argument("--only", choices=NAMES, action="append", metavar="KNOB", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--trace", choices=LOADS, action="append", help="one of its workloads")
    parser.add_argument("--refuse", action="store_true", help="what has not begun within 2 s (short) and 30 s (long)")
    parser.add_argument("--loads", type=float, nargs="+", help="over saturation")
    parser.add_argument("--offsets", type=int, default=OFFSETS)
    parser.add_argument("--rows", type=int, help="of each workload and offset")
    options = parser.parse_args()
    found = {}
    for name in options.only or NAMES:
        knob = KNOBS.get(name)
        found[name] = (
            sweep(knob, options) if knob else batch_windows.sweep(workload.generate_count(options.rows or BATCHED_ROWS))
        )
        print(table(name, knob.columns if knob else batch_windows.COLUMNS, found[name]), flush=True)
    if options.json:
        print(json.dumps(found))


def sweep(knob, options):
    """Figures by workload, value and load."""
    start = Slo().start_limits()
    limits = {"gpu.short_start_s": start.short_s, "gpu.long_start_s": start.long_s} if options.refuse else {}
    found = {}
    for trace in options.trace or knob.traces:
        count = options.rows or ROWS[trace]
        loads = [made(trace, number, options.offsets, count) for number in range(options.offsets)]
        for value in knob.values:
            found.setdefault(trace, {})[said(value)] = {
                f"{ratio:g}": medians([compared(load, limits | value, ratio) for load in loads])
                for ratio in options.loads or LOADS[trace]
            }
            say(f"{trace}: {said(value)}: {row(knob.columns, found[trace][said(value)])}")
    return found


def said(value):
    """A value as people read it."""
    return ", ".join(f"{name.rpartition('.')[2]} {setting}" for name, setting in value.items()) or "defaults"


def medians(runs):
    """Of each figure that all runs have."""
    names = [name for name in runs[0] if all(run.get(name) is not None for run in runs)]
    return {name: round(statistics.median(run[name] for run in runs), 4) for name in names}


@cache
def made(trace, number, offsets, count):
    """One phase of a workload."""
    rows = tuple(rows_of(trace, number, offsets, count))
    asked = scenario.priced(rows, StreamsSettings())
    costs = sorted((true_units(row), place) for place, row in enumerate(rows))
    shorts = frozenset(place for _, place in costs[: round(ORACLE_QUANTILE * len(costs))])
    return Load(rows, number + 1, scenario.saturation_per_s(asked, Fleet()), shorts)


def true_units(row):
    """What it costs, as an oracle knows: tokens as an engine at saturation feels them."""
    return row.input_tokens * 0.067 + row.output_tokens * 0.27


def rows_of(trace, number, offsets, count):
    """W1 from a phase of it on, what is made here from another seed each."""
    rng = random.Random(f"{trace}/{number}")
    if trace == "mix":
        return workload.generate(count / MIX_PER_S, MIX, seed=number + 1)
    if trace == "long-context":
        return workloads.long_context(workload.generate_count(count, seed=number + 11), number + 1)
    every = workload.read_trace(TRACE) if TRACE.exists() else workload.generate_count(offsets * count)
    rows = scenario.shifted(every, number / offsets)[:count]
    if trace == "classes":
        return [replace(row, priority=rng.choices(PRIORITIES, PARTS)[0]) for row in rows]
    return rows


def compared(load, value, ratio):
    """Figures of one run under these settings, and over FIFO's on the same requests."""
    fifo, ours = fifo_jobs(load, ratio), our_jobs(load, value, ratio)
    lengths = [job.asked.length for job in ours]
    one, other = figures(load, fifo, lengths), figures(load, ours, lengths)
    gains = {
        f"{name}_gain": over(one.get(f"{name}_s"), other.get(f"{name}_s"))
        for name in ("ttft", "e2e", "true_ttft", "all_ttft")
    }
    ratios = {
        "long_ratio": over(other.get("long_e2e_s"), one.get("long_e2e_s")),
        "tokens_ratio": over(other["tokens_per_s"], one["tokens_per_s"]),
        "tokens_at_most": most_tokens_per_s(load, ratio) / one["tokens_per_s"],
    }
    return other | gains | ratios


@cache
def fifo_jobs(load, ratio):
    fleet = Fleet()
    return scenario.run(scenario.priced(load.rows, fleet.settings), "fifo", ratio, fleet, load.saturation_per_s).jobs


@cache
def most_tokens_per_s(load, ratio):
    """Of a fleet that begins nothing too late, whatever the order; see `refusal_bound`."""
    fleet, slo = Fleet(), Slo()
    paced = scenario.paced(scenario.priced(load.rows, fleet.settings), ratio * load.saturation_per_s)
    asked = [
        (one.work.request.arrived_s, one.length, true_units(row), row.input_tokens + row.output_tokens)
        for one, row in zip(paced, load.rows, strict=True)
    ]
    units_per_s = statistics.fmean(units for _, _, units, _ in asked) * load.saturation_per_s
    stay_s = fleet.engines * fleet.machine.window_requests / load.saturation_per_s
    lost_ratio, end_s = refusal_bound.least_lost(asked, {one: slo.of(one) for one in Length}, units_per_s, stay_s)
    return sum(tokens for *_, tokens in asked) * (1 - lost_ratio) / end_s


def our_jobs(load, value, ratio):
    """Under the defaults but for these settings; nobody is refused unless they say so."""
    changes = list(value.items())
    streams, gpu = overrides.changed(StreamsSettings(), changes), overrides.changed(GpuSettings(), changes).gpu
    fleet = Fleet(Machine(window_requests=gpu.window_requests), settings=streams, gpu=gpu, seed=load.seed)
    paced = scenario.paced(scenario.priced(load.rows, streams), ratio * load.saturation_per_s)
    limits = gpu.start_limits()
    asked = [
        msgspec.structs.replace(one, last_start_s=expiry.last_start_s(one.work, limits) or NEVER_S) for one in paced
    ]
    return scenario.run(asked, "ours-unshed", ratio, fleet, load.saturation_per_s).jobs


def figures(load, jobs, lengths):
    """Of one run whose requests are divided into these classes; what is short by its number is so by an oracle."""
    slo = Slo()
    waits, took, good = {}, {}, {}
    for job, length in zip(jobs, lengths, strict=True):
        is_done = job.fate is Fate.COMPLETED
        first_s = job.first_token_s - job.arrived_s
        good.setdefault(length, []).append(is_done and first_s <= slo.of(length))
        if is_done:
            groups = ["all", length, *(["true"] if job.asked.number in load.true_shorts else [])]
            groups += [job.asked.work.request.priority] if length is Length.SHORT else []
            for group in groups:
                waits.setdefault(group, []).append(first_s)
                took.setdefault(group, []).append(job.finished_s - job.arrived_s)
    done = [job for job in jobs if job.fate is Fate.COMPLETED]
    ends_s = max(job.finished_s for job in done)
    every = [one for some in good.values() for one in some]
    return {
        "short": len(good.get(Length.SHORT, ())) / len(jobs),
        "ttft_s": p99(waits, Length.SHORT),
        "e2e_s": p99(took, Length.SHORT),
        "true_ttft_s": p99(waits, "true"),
        "all_ttft_s": p99(waits, "all"),
        **{f"ttft_{priority}_s": p99(waits, priority) for priority in Priority},
        "long_e2e_s": p99(took, Length.LONG),
        "long_wait_s": max(waits.get(Length.LONG, [0.0])),
        "in_time": statistics.fmean(every),
        **{f"in_time_{length}": statistics.fmean(some) for length, some in good.items()},
        "shed": 1 - len(done) / len(jobs),
        "tokens_per_s": sum(job.prompt_tokens + job.output_tokens for job in done) / ends_s,
    }


def p99(values, group):
    return results.quantile(values.get(group, ()), 0.99)


def over(one, other):
    return one / other if one and other else None


def table(name, columns, found):
    """A row for each value and workload, each figure at one load after the other."""
    lines = [f"\n### {name}"]
    for trace, by_value in found.items():
        loads = " / ".join(next(iter(by_value.values())))
        lines += [
            f"\n{trace}, load {loads}:\n",
            f"| value | {' | '.join(columns)} |",
            "|---" * (1 + len(columns)) + "|",
        ]
        lines += [f"| {value} | {row(columns, by_load)} |" for value, by_load in by_value.items()]
    return "\n".join(lines)


def row(columns, by_load):
    """Cells of a table."""
    return " | ".join(
        " / ".join(digits(run[column]) if column in run else "-" for run in by_load.values()) for column in columns
    )


if __name__ == "__main__":
    main()
