"""Run the parts, show the figures, and end with 1 when a ratio misses its bound."""

import argparse
import json
import sys
import tempfile
import time
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import saturation
from tests.benchmarks.ground import Ground, Sizes
from topics.local_broker import LocalBroker
from topics.local_redis import LocalRedis

PARTS = (
    "admission", "admission_latency", "budgets", "latency", "saturation", "memory", "fairness", "overload",
    "consumer", "soak",
)  # fmt: skip
ONLY_WHEN_NAMED = {"soak"}
"""They take longer than all others together."""
_ELSEWHERE = {"overload": ("fairness", "overload")}
_BOUNDS = {"_at_least": (1, "at least"), "_at_most": (-1, "at most")}


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
        figures = _measure(Path(folder), options.only or [name for name in PARTS if name not in ONLY_WHEN_NAMED], say)
    missed = missed_bounds(figures)
    if options.json:
        # The figures of a single part are also at the top, where a script looks first.
        first = next(iter(figures.values())) if len(figures) == 1 else {}
        print(json.dumps({**_rounded(first), **_rounded(figures), "missed": missed}))
    else:
        _show(figures, missed)
    return 1 if missed else 0


def _measure(folder, names, say):
    say("starting the embedded broker and Redis")
    with (
        LocalBroker(folder / "kafka", is_lasting=True, on_progress=say) as broker,
        LocalRedis(folder / "redis") as redis,
    ):
        ground = Ground(broker.bootstrap_servers, redis.url, broker.pid, redis.pid, folder, say)
        return measure(ground, Sizes(), names)


def measure(ground, sizes, names):
    """Figures by part, in the order of `PARTS`."""

    @lru_cache(maxsize=1)
    def loaded():
        return saturation.run(ground, sizes)

    shared = {"saturation": lambda: saturation.throughput(loaded()), "memory": lambda: saturation.memory(loaded())}

    def part(name):
        if name in shared:
            return shared[name]()
        module, function = _ELSEWHERE.get(name, (name, "measure"))
        return getattr(import_module(f"tests.benchmarks.{module}"), function)(ground, sizes)

    return {name: part(name) for name in PARTS if name in names}


def missed_bounds(figures):
    """A sentence for each figure that misses its bound: `x` beside `x_at_least` or `x_at_most`."""
    found = []
    for part, row in figures.items():
        for name, bound in row.items():
            for ending, (sign, words) in _BOUNDS.items():
                value = row.get(name.removesuffix(ending)) if name.endswith(ending) else None
                if value is not None and sign * value < sign * bound:
                    what = _said(name.removesuffix(ending), value)
                    found.append(f"{part}: {what}, wanted {words} {bound:g}")
    return found


def _said(name, value):
    return f"{value:.2f} times" if name == "ratio" else f"{name} {value:.2f}"


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
