"""Many admitters against one bucket: what they were given beyond burst and rate, in any window by the server's clock.

Each process's own clock is wrong by hours, which changes nothing as long as nobody reads it.
"""

import asyncio
import itertools
import multiprocessing
import random
import time
from dataclasses import dataclass, field

from streams.breaker import Breaker
from streams.budgets import Ask, Budgets, Charge, Paid
from streams.limits import LiveLimits
from streams.settings import Bucket, Degrade, Streams, StreamsSettings
from topics import clients
from topics.clock import SystemClock
from topics.records import Origin, Priority
from topics.settings import Redis

SKEWS_S = (-86_400.0, -3_600.0, 3_600.0, 86_400.0)
"""By how much the clock of each process is wrong."""
RATE_PER_S = 20_000.0
BURST_S = 1.0
UNITS = (5.0, 60.0)
OVERRUN = 4.0
"""Real tokens over the estimate, in the second run."""
SERVICE_S = 0.2
RETRY_S = 0.02
PATIENCE_S = 10.0
POOL, LANE, TENANT = "default", "high.short", "one"
LEVEL = f"tenant:{TENANT}"
AMPLE = Bucket(refill_units_per_s=1e9)


@dataclass(frozen=True, slots=True)
class Task:
    """What one process does."""

    redis_url: str
    number: int
    admitters: int
    seconds: float
    overruns: bool


@dataclass(slots=True)
class Log:
    """What one process saw, times by the server's clock."""

    calls: int = 0
    admitted: list = field(default_factory=list)
    """(time, units reserved)"""
    settled: list = field(default_factory=list)
    """(time, units that had been reserved)"""
    lowest_units: float = 0.0


def measure(ground, sizes):
    """Estimates that are right, then estimates that are a quarter of the truth."""
    exact = _run(ground, sizes, overruns=False)
    over = _run(ground, sizes, overruns=True)
    admitted = sorted(itertools.chain.from_iterable(log.admitted for log in exact))
    figures = {
        "admitters": sizes.budgets_admitters,
        "seconds": sizes.budgets_s,
        "clocks_apart_s": max(SKEWS_S) - min(SKEWS_S),
        "calls_per_s": sum(log.calls for log in exact) / sizes.budgets_s,
        "admitted_per_s": len(admitted) / sizes.budgets_s,
        "admitted_ratio": sum(units for _, units in admitted) / (RATE_PER_S * (BURST_S + sizes.budgets_s)),
        "overshoot_units": overshoot_units(admitted, RATE_PER_S, RATE_PER_S * BURST_S),
        "overshoot_units_at_most": 0.0,
        **_excess(over),
    }
    ground.say(f"budgets: {figures['admitted_per_s']:,.0f} admitted/s, overshoot {figures['overshoot_units']:g} units")
    return figures


def overshoot_units(admitted, rate_per_s, burst_units):
    """The most that any window got beyond burst and rate; `admitted` is (time, units) in order of time."""
    begin_s = admitted[0][0] if admitted else 0.0
    spent, least, worst = 0.0, 0.0, 0.0
    for at_s, units in admitted:
        earned = rate_per_s * (at_s - begin_s)
        least = min(least, spent - earned)
        spent += units
        worst = max(worst, spent - earned - least - burst_units)
    # Sums of floats; the smallest request is a million times as large.
    return 0.0 if worst < UNITS[0] * 1e-6 else worst


def _excess(logs):
    """How far the bucket fell when requests cost more than reserved, and whether later ones paid for it.

    Only what is open when the last unit is gone can still cost more, so the debt is at most its overrun; and all that
    is ever spent is what flowed in, and the debt.
    """
    most = (OVERRUN - 1) * _most_open(logs)
    times = [at_s for log in logs for at_s, _ in [*log.admitted, *log.settled]]
    spent = OVERRUN * sum(units for log in logs for _, units in log.settled)
    flowed = RATE_PER_S * (BURST_S + max(times) - min(times))
    return {
        "excess_units": -min(log.lowest_units for log in logs),
        "excess_units_at_most": most,
        "spent_ratio": spent / flowed,
        "spent_ratio_at_most": 1 + most / flowed,
    }


def _most_open(logs):
    """The largest sum of reserved and unsettled units."""
    events = sorted(
        [(at_s, units) for log in logs for at_s, units in log.admitted]
        + [(at_s, -units) for log in logs for at_s, units in log.settled]
    )
    return max(itertools.accumulate(units for _, units in events))


def _run(ground, sizes, *, overruns):
    with clients.redis_sync(_settings(ground.redis_url)) as client:
        client.flushdb()
    asyncio.run(_open(ground.redis_url))
    each = sizes.budgets_admitters // len(SKEWS_S)
    tasks = [Task(ground.redis_url, n, each, sizes.budgets_s, overruns) for n in range(len(SKEWS_S))]
    with multiprocessing.get_context("spawn").Pool(len(tasks)) as processes:
        return processes.map(_process, tasks)


async def _open(url):
    await _budgets(_settings(url)).restore({})


def _settings(url):
    return StreamsSettings(
        redis=Redis(url=url, timeout_s=PATIENCE_S),
        streams=Streams(
            global_budget=AMPLE,
            pool_budget=AMPLE,
            class_budgets=dict.fromkeys(Priority, AMPLE),
            tenant_budget=Bucket(refill_units_per_s=RATE_PER_S, burst_s=BURST_S),
            degrade=Degrade(timeout_s=PATIENCE_S),
        ),
    )


def _budgets(settings, client=None):
    client = client or clients.redis_async(settings)
    return Budgets(client, settings, Breaker(SystemClock(), settings.streams.degrade), LiveLimits(settings.streams))


def _process(task):
    real, skew_s = time.time, SKEWS_S[task.number]
    time.time = lambda: real() + skew_s
    return asyncio.run(_admitters(task))


async def _admitters(task):
    settings, log = _settings(task.redis_url), Log()
    client = clients.redis_async(settings)
    end_s = time.monotonic() + task.seconds
    names = [f"{task.number}-{n}" for n in range(task.admitters)]
    await asyncio.gather(*(_admit(_budgets(settings, client), name, end_s, task.overruns, log) for name in names))
    await client.aclose()
    return log


async def _admit(budgets, name, end_s, overruns, log):
    """One admitter: ask until it is paid; then the next, or first run and settle."""
    chance = random.Random(name)
    for turn in itertools.count():
        units = chance.uniform(*UNITS)
        origin = Origin(topic=name, partition=0, offset=turn)
        asked = Ask(f"{name}-{turn}", origin, "replies", TENANT, POOL, LANE, Priority.HIGH, units, PATIENCE_S)
        while True:
            if time.monotonic() > end_s:
                return
            standing = (await budgets.reserve([asked], {}))[0]
            log.calls += 1
            if isinstance(standing, Paid):
                break
            await asyncio.sleep(min(RETRY_S, standing.facts.budget_wait_s))
        log.admitted.append((budgets.take_balances().at_s, units))
        if overruns:
            await asyncio.sleep(chance.uniform(0.0, SERVICE_S))
            await budgets.settle(
                [Charge(asked.id, 1, OVERRUN * units, False, units, TENANT, POOL, Priority.HIGH, LANE)]
            )
            balances = budgets.take_balances()
            log.settled.append((balances.at_s, units))
            log.lowest_units = min(log.lowest_units, balances.levels[LEVEL])
