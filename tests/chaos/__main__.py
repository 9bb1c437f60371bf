"""`make chaos`: the processes killed, frozen, restarted and scaled, their servers and network taken away, under load.

Ends with one line of JSON on stdout under --json, else with a line per figure; status 1 when anything is wrong.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.chaos import expiry, faults, runner

FULL_KILLS = 100
SHORT_OUTAGE_S = 12.0


def main():
    options = _options()
    started_s = time.monotonic()

    def say(text):
        sys.stderr.write(f"[{time.monotonic() - started_s:6.1f} s] {text}\n")
        sys.stderr.flush()

    with tempfile.TemporaryDirectory(prefix="rampmeter-chaos-") as folder:
        figures = _run(Path(folder), plan_of(options), say)
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    return 1 if figures["wrong"] else 0


def _options():
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=FULL_KILLS, help="under 100 everything else is cut short as well")
    parser.add_argument("--rounds", type=int, help="of each fault that is no kill (two, one when cut short)")
    parser.add_argument("--per-s", type=float, default=runner.Plan().per_s, help="requests per second")
    parser.add_argument("--seed", type=int, default=runner.Plan().seed, help="of the order and the moments")
    names = [fault.name for fault in faults.OTHERS]
    parser.add_argument("--only", action="append", choices=names, metavar="FAULT", help=", ".join(names))
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    return parser.parse_args()


def plan_of(options):
    """All of it from 100 kills on, else each fault once and short outages."""
    is_full = options.kills >= FULL_KILLS
    sizes = {} if is_full else {"rounds": 1, "outage_s": SHORT_OUTAGE_S}
    if options.rounds:
        sizes["rounds"] = options.rounds
    return runner.Plan(
        kills=options.kills, per_s=options.per_s, seed=options.seed, only=tuple(options.only or ()), **sizes
    )


def _run(folder, plan, say):
    found = asdict(runner.play(plan, folder, say))
    if plan.kills >= FULL_KILLS:
        say("the table, past the expiry of its windows")
        before, after = expiry.rows_of_an_own_site(folder, say)
        found |= {"rows_before_restarts": before, "rows_after_restarts": after}
        found["wrong"] += [f"rows that never expire: {after}"] if any(after) else []
    return found


if __name__ == "__main__":
    sys.exit(main())
