"""What the window of static batches costs and brings, in virtual time: `sweeps` shows it as the knob `batch_window`.

One A100 that takes whole batches of at most 16, each when the one before has ended; the batches are those of
`gpu_consumers.policy.static_batch`.  Loads are over what it does with all work present.
"""

from collections import deque
from dataclasses import dataclass, replace

from gpu_consumers.engines.iteration_model import PRESETS, IterationModel, Sequence
from gpu_consumers.policy import static_batch
from gpu_consumers.policy.static_batch import Rules, Wait, Waiting
from rampmeter import results, workload
from topics.records import Tier

WINDOWS_S = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
LOADS = (0.1, 0.3, 0.6, 0.9)
COLUMNS = ("batch", "wait_p50_s", "wait_p99_s", "e2e_p50_s", "e2e_p99_s")
SIZE = 16
BRIEF_TOKENS = (200, 8)
"""Longest prompt and answer of requests as short as a classifier's."""
_MODEL = "one"
_FOREVER_S = 1e9


@dataclass(slots=True)
class Ended:
    """What became of the requests: waits until their batch began, times until their own end, sizes of batches."""

    waits_s: list
    took_s: list
    sizes: list
    end_s: float = 0.0


def sweep(rows):
    """Figures by length of the answers, window and load."""
    brief = [
        replace(row, input_tokens=min(row.input_tokens, BRIEF_TOKENS[0]), output_tokens=BRIEF_TOKENS[1]) for row in rows
    ]
    return {"answers of the trace": by_window(rows), f"answers of {BRIEF_TOKENS[1]} tokens": by_window(brief)}


def by_window(rows):
    """Figures by window and load."""
    most_per_s = len(rows) / served([(0.0, row) for row in rows], WINDOWS_S[0]).end_s
    found = {}
    for window_s in WINDOWS_S:
        for ratio in LOADS:
            paced = [(row.arrival_s, row) for row in workload.paced(rows, ratio * most_per_s)]
            found.setdefault(f"{window_s:g} s", {})[f"{ratio:g}"] = _figures(served(paced, window_s))
    return found


def served(arrivals, window_s):
    """All requests, each given with the time of its arrival, in batches."""
    rules = Rules(SIZE, dict.fromkeys(Tier, window_s))
    waiting, ended, free_s, following = deque(), Ended([], [], []), 0.0, 0
    now_s = arrivals[0][0]
    while waiting or following < len(arrivals):
        while following < len(arrivals) and arrivals[following][0] <= now_s:
            waiting.append(arrivals[following])
            following += 1
        next_s = arrivals[following][0] if following < len(arrivals) else _FOREVER_S
        heads = {_MODEL: Waiting(len(waiting), ((Tier.MEDIUM, waiting[0][0]),))} if waiting else {}
        plan = static_batch.plan(heads, rules, now_s, is_free=now_s >= free_s)
        if isinstance(plan, Wait):
            until_s = free_s if now_s < free_s else plan.until_s
            now_s = min(next_s, _FOREVER_S if until_s is None else until_s)
        else:
            batch = [waiting.popleft() for _ in range(min(SIZE, len(waiting)))]
            free_s = ended.end_s = _run(batch, now_s, ended)
    return ended


def _run(batch, now_s, ended):
    """When the last of a batch that begins now has ended."""
    model = IterationModel(PRESETS["a100-8b"], SIZE)
    arrived_s = {}
    for at_s, row in batch:
        sequence = Sequence("", row.input_tokens, row.output_tokens)
        arrived_s[sequence] = at_s
        model.add(sequence, 0, now_s)
    ends_s = {event.sequence: event.at_s for event in model.advance(_FOREVER_S)}
    ended.sizes.append(len(batch))
    ended.waits_s += [now_s - at_s for at_s, _ in batch]
    ended.took_s += [ends_s[sequence] - at_s for sequence, at_s in arrived_s.items()]
    return max(ends_s.values())


def _figures(ended):
    return {
        "batch": sum(ended.sizes) / len(ended.sizes),
        **{f"wait_p{p:.0f}_s": results.quantile(ended.waits_s, p / 100) for p in (50, 99)},
        **{f"e2e_p{p:.0f}_s": results.quantile(ended.took_s, p / 100) for p in (50, 99)},
    }
