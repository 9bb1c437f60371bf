"""One run: the scene is set, the faults strike in an order drawn from the seed, and the oracle is asked."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass

from streams.breaker import Breaker
from streams.budgets import Budgets
from streams.limits import LiveLimits
from tests.chaos import faults, oracle
from tests.chaos.load import STEADY
from tests.chaos.scene import Scene
from tests.support.stalls import Watch
from topics import clients
from topics.clock import SystemClock

SETTLE_S = 120.0
PAUSES_S = ((0.3, (0.0, 2.0)), (1.0, (2.0, 9.0)))
"""Before a kill: now and then at once, so that one meets the recovery from the last."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done.  `outage_s` is how long a broker is away, and three times as long as Redis is."""

    kills: int = 100
    rounds: int = 2
    """Of each fault that is no kill."""
    outage_s: float = 60.0
    per_s: float = 60.0
    seed: int = 4
    only: tuple = ()
    """Names of faults; empty: all."""

    def script(self, drawn):
        """The faults in their order."""
        chosen = [fault for fault in faults.OTHERS if not self.only or fault.name in self.only] * self.rounds
        kills = [drawn.choice(faults.KILLS) for _ in range(self.kills)]
        script = [*chosen, *kills]
        drawn.shuffle(script)
        return script


def play(plan, folder, say):
    """Everything in turn; what was found."""
    found, drawn, clock = oracle.Found(seed=plan.seed), random.Random(plan.seed), SystemClock()
    script, begun_s = plan.script(drawn), clock.wall_s()
    say(f"seed {plan.seed}, {len(script)} faults")
    with Scene(folder, plan.per_s, plan.outage_s, say) as scene:
        asyncio.run(_fill(scene.settings))
        scene.begin()
        with Watch(scene.settings, oracle.watched(scene.settings)) as watch:
            for number, fault in enumerate(script):
                say(f"{number + 1} of {len(script)}: {fault.name}, {len(scene.load.landed)} landed")
                _strike(scene, fault, drawn, watch)
            scene.load.stop()
            scene.wait_calm("all")
            scene.complaints += oracle.wait_settled(scene.settings, SETTLE_S)
        done = Counter(fault.name for fault in script)
        found.faults, found.kills = dict(done), sum(done[fault.name] for fault in faults.KILLS)
        longest_s = watch.stalls.longest_s
        found.max_stall_s, found.max_stall_at = longest_s and round(longest_s, 1), watch.stalls.where
        found.max_standstill_s = round(watch.stalls.longest_in_all_s, 1)
        for fleet in scene.fleets:
            found.ended |= fleet.ended
            scene.complaints += fleet.complaints
        scene.complaints += scene.load.refused[:5]
        oracle.judge(found, scene, begun_s, clock.wall_s())
    return found


def _strike(scene, fault, drawn, watch):
    if fault in faults.KILLS:
        _, pause_s = next(pause for pause in PAUSES_S if drawn.random() < pause[0])
        scene.let_pass(drawn.uniform(*pause_s))
        fault.strike(scene, drawn)
        return
    started_s = time.monotonic()
    if fault.is_outage:
        with watch.excused():
            fault.strike(scene, drawn)
    else:
        fault.strike(scene, drawn)
    struck_s = time.monotonic() - started_s
    scene.wait_calm(fault.name)
    scene.say(
        f"  {fault.name} took {struck_s:.0f} s, calm {time.monotonic() - started_s - struck_s:.0f} s later;"
        f" longest standstill so far {watch.stalls.longest_s or 0:.1f} s"
    )


async def _fill(settings):
    clock = SystemClock()
    client = clients.redis_async(settings)
    budgets = Budgets(client, settings, Breaker(clock, settings.streams.degrade), LiveLimits(settings.streams))
    await budgets.restore({f"tenant:{tenant}": (oracle.FILLED_UNITS, clock.wall_s()) for tenant in STEADY})
    await client.aclose()
