"""The most work that can be begun in time, whatever the order: a fluid bound, no engine and no policy.

Work flows through a fleet that does a fixed amount of it a second, earliest deadline first, and what is left of a
request at its deadline is lost: no other order loses less.  What is begun in time may end later, so a deadline is the
last moment to begin and the mean time in an engine after it.
"""

import heapq


def least_lost(asked, limits_s, units_per_s, stay_s):
    """Part of the tokens that is lost, and when the rest is done.

    `asked`: (arrival, class, true cost, tokens) by arrival.  `limits_s` by class: longest wait until it is begun.
    """
    waiting, now_s, lost, total = [], 0.0, 0.0, 0

    def serve(until_s):
        nonlocal now_s, lost
        while waiting and now_s < until_s:
            deadline_s, number, left, units, tokens = heapq.heappop(waiting)
            if deadline_s <= now_s:
                lost += tokens * left / units
                continue
            step_s = min(until_s, deadline_s, now_s + left / units_per_s) - now_s
            now_s += step_s
            left -= step_s * units_per_s
            if left > units * 1e-9:
                heapq.heappush(waiting, (deadline_s, number, left, units, tokens))
        return now_s

    for number, (arrived_s, length, units, tokens) in enumerate(asked):
        serve(arrived_s)
        now_s = max(now_s, arrived_s)
        total += tokens
        heapq.heappush(waiting, (arrived_s + limits_s[length] + stay_s, number, units, units, tokens))
    end_s = serve(float("inf"))
    return lost / total, end_s
