"""Run the parts, show the figures, and end with 1 when a ratio misses its bound."""

import argparse
import json
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import admission, latency, saturation
from tests.benchmarks.ground import Ground, Sizes
from topics.local_broker import LocalBroker
from topics.local_redis import LocalRedis

PARTS = ("admission", "latency", "saturation", "memory")


def main():
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON as the last line of stdout")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="NAME", help=f"one of {', '.join(PARTS)}")
    options = parser.parse_args()
    started_s = time.monotonic()

    def say(text):
        sys.stderr.write(f"[{time.monotonic() - started_s:6.1f} s] {text}\n")
        sys.stderr.flush()

    with tempfile.TemporaryDirectory(prefix="rampmeter-bench-") as folder:
        figures = _measure(Path(folder), options.only or PARTS, say)
    missed = missed_bounds(figures)
    if options.json:
        print(json.dumps({**_rounded(figures), "missed": missed}))
    else:
        _show(figures, missed)
    return 1 if missed else 0


def _measure(folder, names, say):
    say("starting the embedded broker and Redis")
    with LocalBroker(folder / "kafka", on_progress=say) as broker, LocalRedis(folder / "redis") as redis:
        ground = Ground(broker.bootstrap_servers, redis.url, broker.pid, redis.pid, folder, say)
        return measure(ground, Sizes(), names)


def measure(ground, sizes, names):
    """Figures by part, in the order of `PARTS`."""

    @lru_cache(maxsize=1)
    def loaded():
        return saturation.run(ground, sizes)

    parts = {
        "admission": lambda: admission.measure(ground, sizes),
        "latency": lambda: latency.measure(ground, sizes),
        "saturation": lambda: saturation.throughput(loaded()),
        "memory": lambda: saturation.memory(loaded()),
    }
    return {name: parts[name]() for name in PARTS if name in names}


def missed_bounds(figures):
    """A sentence for each ratio that misses its bound."""
    found = []
    for part, row in figures.items():
        ratio = row.get("ratio")
        if ratio is not None and ratio < row.get("ratio_at_least", ratio):
            found.append(f"{part}: {ratio:.2f} times, wanted at least {row['ratio_at_least']:g}")
        if ratio is not None and ratio > row.get("ratio_at_most", ratio):
            found.append(f"{part}: {ratio:.2f} times, wanted at most {row['ratio_at_most']:g}")
    return found


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def _show(figures, missed):
    console = Console()
    table = Table("part", "figure", "value")
    for part, row in figures.items():
        for name, value in row.items():
            cells = value.items() if isinstance(value, dict) else [("", value)]
            for inner, number in cells:
                table.add_row(part, f"{name} {inner}".strip(), f"{number:,.2f}", end_section=False)
    console.print(table)
    for sentence in missed:
        console.print(f"[red]missed[/red] {sentence}")


if __name__ == "__main__":
    sys.exit(main())
