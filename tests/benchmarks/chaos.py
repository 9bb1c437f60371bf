"""`make chaos`: streams workers and GPU consumers killed again and again under load; what was lost or doubled.

Ends with one line of JSON on stdout under --json, else with a line per figure.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.ground import Ground
from tests.support.admission_chaos import Chaos, Plan, rows_after_restarts
from topics.local_broker import LocalBroker
from topics.local_redis import LocalRedis

RESTARTS = 5
UNITS_OFF = 0.01


def main():
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-s", type=float, default=Plan().per_s, help="requests per second")
    parser.add_argument("--seed", type=int, default=Plan().seed, help="of the moments of the kills")
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    options = parser.parse_args()
    started_s = time.monotonic()

    def say(text):
        sys.stderr.write(f"[{time.monotonic() - started_s:6.1f} s] {text}\n")

    with tempfile.TemporaryDirectory(prefix="rampmeter-chaos-") as folder:
        found = _run(Path(folder), Plan(kills=options.kills, per_s=options.per_s, seed=options.seed), say)
    wrong = _wrong(found)
    figures = {**found, "wrong": wrong}
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    return 1 if wrong else 0


def _run(folder, plan, say):
    with LocalBroker(folder / "kafka") as broker, LocalRedis(folder / "redis") as redis:
        ground = Ground(broker.bootstrap_servers, redis.url, broker.pid, redis.pid, folder, say)
        with ground.site() as site:
            found = asdict(Chaos(site, folder, say).run(plan))
        say("the table, past the expiry of its windows")
        with ground.site() as site:
            before, after = rows_after_restarts(site, folder, RESTARTS)
    return {**found, "rows_before_restarts": before, "rows_after_restarts": after}


def _wrong(found):
    zeros = (
        "lost", "duplicates", "faults", "unanswered", "answered_twice", "charged_twice", "still_reserved", "tracebacks",
    )  # fmt: skip
    wrong = [f"{name}: {found[name]}" for name in zeros if found[name]]
    for tenant, units in found["missing_units"].items():
        if abs(units - found["settled_units"][tenant]) > UNITS_OFF:
            wrong.append(f"{tenant}: {units} units are missing, {found['settled_units'][tenant]} were settled")
    if any(found["rows_after_restarts"]):
        wrong.append(f"rows that never expire: {found['rows_after_restarts']}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
