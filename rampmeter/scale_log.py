"""`rampmeter autoscaler explain`: the autoscaler's last decisions, with what each was made from and why."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from autoscaler.policy.replicas import Reason
from rampmeter import columns, durations, reading
from rampmeter.output import Output
from topics import codec
from topics.clock import Clock
from topics.records import Decision
from topics.settings import Settings

WORDS = {
    Reason.STEADY: "the count is what the work needs",
    Reason.FIRST_RECORD: "work came to a pool of nobody",
    Reason.SCALE_UP: "more are needed, and were for all of up_after_s",
    Reason.SCALE_DOWN: "fewer are needed, and were for all of down_after_s (nobody: for all of idle_after_s)",
    Reason.OUT_OF_BOUNDS: "brought within min_replicas, max_replicas and the lane partitions",
    Reason.UP_PENDING: "more are needed, but not for long enough yet",
    Reason.DOWN_PENDING: "fewer are needed, but not for long enough yet",
    Reason.IDLE_PENDING: "nobody is needed, but not for long enough yet",
    Reason.COOLDOWN: "the count was changed less than cooldown_s ago",
    Reason.MOVING: "partitions changed their owner less than cooldown_s ago: nobody goes yet",
    Reason.AT_MAX: "more are needed, but max_replicas is reached",
    Reason.AT_PARTITIONS: "more are needed, but a consumer beyond the lane partitions gets no work",
    Reason.HOT_PARTITION: "work waits on partitions that one consumer each must serve: more consumers do not help",
    Reason.AT_QUOTA: "more are needed, but other pools come first with the GPUs of gpu_quota",
    Reason.LAG_UNAVAILABLE: "what waits could not be read completely: the count is held",
}
_TITLES = (
    "AGO", "POOL", "REPLICAS", "REASON", "RECORDS", "OLDEST S", "WAITING", "HELD", "RUNNING", "ARRIVING/S",
    "EXPECTED/S", "ONE SERVES/S", "READY", "NEEDED NOW", "THEN",
)  # fmt: skip
_NUMBERS = range(4, len(_TITLES))
_INPUTS = (
    ("lag_records", 0), ("oldest_age_s", 1), ("waiting_units", 0), ("held_units", 0), ("running_units", 0),
    ("arrival_units_per_s", 0), ("forecast_units_per_s", 0), ("replica_units_per_s", 0), ("ready", 0),
    ("present_replicas", 1), ("ideal_replicas", 1),
)  # fmt: skip
"""Input and its decimals, by column."""


def read(settings: Settings, pools: Collection[str], since_s: float, last: int) -> list[Decision]:
    """The last decisions about these pools since then, the newest last."""
    keys = {pool.encode() for pool in pools}
    kept: deque[Decision] = deque(maxlen=last)
    for message in reading.since(settings, [settings.topic("decisions")], since_s):
        if message.key() not in keys:
            continue  # of a request: most of the log
        try:
            decision = codec.decode_decision(message.value() or b"")
        except codec.UNREADABLE:
            continue
        if decision.stage == "scale":
            kept.append(decision)
    return sorted(kept, key=lambda decision: decision.at_s)


def show(decisions: Sequence[Decision], clock: Clock, output: Output) -> None:
    """Print them as a table, and what their reasons mean; or as JSON, whole."""
    if output.as_json:
        output.result({"decisions": decisions})
    elif not decisions:
        output.say("No decision of the autoscaler in the time that was looked at; --since looks further back.")
    else:
        output.text(render(decisions, clock.wall_s()))


def render(decisions: Sequence[Decision], now_s: float) -> str:
    """The table and its words.

    Cost in units; of what is waiting, held is not on a lane yet; `then` is when a replica that is ordered now serves.
    """
    rows = [_row(decision, now_s) for decision in decisions]
    return "\n".join([columns.render(_TITLES, rows, _NUMBERS), "", *_legend(decisions)])


def _row(decision: Decision, now_s: float) -> list[str]:
    before, after = decision.inputs.get("replicas_before"), decision.inputs.get("replicas")
    return [
        durations.shown(now_s - decision.at_s),
        decision.id,
        f"{before}" if before == after else f"{before} > {after}",
        decision.reason,
        *(_number(decision.inputs.get(name), decimals) for name, decimals in _INPUTS),
    ]


def _number(value: object, decimals: int) -> str:
    return f"{value:,.{decimals}f}" if isinstance(value, int | float) else "unknown"


def _legend(decisions: Iterable[Decision]) -> list[str]:
    """Each reason once; then what each failed reading said."""
    known = {reason.value: words for reason, words in WORDS.items()}
    reasons = dict.fromkeys(decision.reason for decision in decisions)
    problems = dict.fromkeys(f"{one.id}: {one.inputs['problem']}" for one in decisions if "problem" in one.inputs)
    return [
        *(f"{reason}: {known.get(reason, 'of another version')}" for reason in reasons),
        *map(columns.printable, problems),
    ]
