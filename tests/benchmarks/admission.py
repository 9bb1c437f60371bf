"""Admitted requests per second and core: our worker beside two plain Faust agents, in turns, on the same records."""

from dataclasses import dataclass
from statistics import median

from tests.benchmarks import forward_agent, naive_agent, processes
from tests.benchmarks.ground import wait_until
from topics import catalog

LIMIT_S = 120.0
WARM_RATIO = 0.2
"""Share of the records that passes before the measurement begins: start, first fetches, first rebalance."""
AT_LEAST, FORWARD_AT_LEAST = 3.0, 0.8


@dataclass(frozen=True, slots=True)
class Pace:
    """What one run reached."""

    per_s: float
    per_cpu_s: float


def measure(ground, sizes):
    """Run all in turns; each figure is the median of the rounds."""
    rivals = {"naive": _naive, "forward": _forward, "streams": _streams}
    paces = {who: [] for who in rivals}
    for turn in range(sizes.admission_rounds):
        for who, run in rivals.items():
            with ground.site() as site:
                site.put(sizes.admission_requests)
                pace = run(site, sizes.admission_requests)
            ground.say(f"admission {turn + 1}: {who} {pace.per_s:,.0f}/s, {pace.per_cpu_s:,.0f} per CPU second")
            paces[who].append(pace)
    per_cpu_s = {who: median(pace.per_cpu_s for pace in found) for who, found in paces.items()}
    return {
        **{f"{who}_per_s": median(pace.per_s for pace in found) for who, found in paces.items()},
        **{f"{who}_per_cpu_s": value for who, value in per_cpu_s.items()},
        "ratio": per_cpu_s["streams"] / per_cpu_s["naive"],
        "ratio_at_least": AT_LEAST,
        "ratio_forward": per_cpu_s["streams"] / per_cpu_s["forward"],
        "ratio_forward_at_least": FORWARD_AT_LEAST,
    }


def _naive(site, requests):
    (target, _) = site.create(naive_agent.TARGET, naive_agent.changelog())
    return _pace(site.start("naive", "tests.benchmarks.naive_agent"), site.counter([target]), requests)


def _forward(site, requests):
    (target,) = site.create(forward_agent.TARGET)
    return _pace(site.start("forward", "tests.benchmarks.forward_agent"), site.counter([target]), requests)


def _streams(site, requests):
    lanes = catalog.lanes(site.settings, "default")
    return _pace(site.start("streams", "streams"), site.counter(lanes), requests)


def _pace(child, count, requests):
    begin = None
    for at_s, reached in wait_until(count, requests, LIMIT_S, child):
        child.check()
        now = (at_s, processes.cpu_s(child.pid), reached)
        if begin is None and reached >= WARM_RATIO * requests:
            begin = now
    admitted = now[2] - begin[2]
    return Pace(admitted / (now[0] - begin[0]), admitted / max(now[1] - begin[1], 1 / processes.TICKS_PER_S))
