"""Which incident makes which alert true, and how it is got rid of."""

from dataclasses import dataclass

from rampmeter.chaos.acts import (
    Act,
    cutting_off,
    drill,
    flooding,
    for_a_while,
    forgetting_a_ledger,
    forgetting_a_request,
    garbage,
    later,
    piling,
    poor,
    sending,
    standing_still,
    stuttering,
    together,
)
from rampmeter.chaos.scene import Kind

_CONSUMERS = "gpu_consumers"
_SHORT = Kind(max_tokens=20)
_CALM_PER_S, _BUSY_PER_S = 2.0, 20.0
_LATER_S = 5.0
"""Until there is work everywhere."""
_FLOOD = flooding(Kind(max_tokens=250, patience_s=30), 200.0, most=600)
_HELD_UP = together(sending(_SHORT, _CALM_PER_S), stuttering(_CONSUMERS))
_DEAD = standing_still(_CONSUMERS)
_PATIENT_S = 900.0
"""Longer than any incident that lets work wait."""
_DRILL = "a drill, which only tells Prometheus, with the label `drill`, of a"
"""Only a GPU's driver tells of its memory and its temperature, and none is made hot on purpose."""
_PAUSE = "rampmeter pause tenant {tenant}"


@dataclass(frozen=True, slots=True)
class Incident:
    """One of them."""

    alert: str
    what: str
    """What it does to the stack."""
    act: Act
    lasts_s: float
    """Until the alert has fired under the rules as they are, and some."""
    way_out: str | None = None
    """The runbook's command that clears the alert while the incident goes on; none: it clears with the incident."""


INCIDENTS = {
    "shorts-slow": Incident(
        "RampmeterShortsSlow", "consumers stand still for seconds again and again, under short requests", _HELD_UP, 300
    ),
    "queue-long": Incident("RampmeterQueueLong", "a tenant floods the pool with short requests", _FLOOD, 180, _PAUSE),
    "throttled": Incident(
        "RampmeterThrottled",
        "a tenant asks for more than its budget, which was made small",
        together(poor, sending(_SHORT, _CALM_PER_S)),
        420,
        "rampmeter limits set tenant {tenant} --refill-units-per-s 4000 --burst-s 30",
    ),
    "gpu-memory-full": Incident(
        "RampmeterGpuMemoryFull",
        f"{_DRILL} GPU whose memory is nearly full",
        drill("gpu_memory_used_ratio", 0.96),
        120,
    ),
    "gpu-hot": Incident(
        "RampmeterGpuHot",
        f"{_DRILL} GPU at 90 degrees Celsius",
        drill("gpu_temperature_celsius", 90.0),
        120,
    ),
    "errors": Incident(
        "RampmeterErrors",
        "a tenant sends requests that the engine refuses",
        sending(Kind(max_tokens=20, extra={"simulated_output_tokens": "many"}), _CALM_PER_S),
        300,
        _PAUSE,
    ),
    "lag-records": Incident(
        "RampmeterLagRecords",
        "consumers stand still while thousands of tiny requests come",
        together(_DEAD, piling(Kind(max_tokens=1, patience_s=240), 300, most=8000)),
        240,
    ),
    "lag-age": Incident(
        "RampmeterLagAge",
        "consumers stand still with work on their lanes",
        together(_DEAD, piling(Kind(max_tokens=20, patience_s=_PATIENT_S), 1, most=20)),
        300,
    ),
    "lag-drain": Incident(
        "RampmeterLagDrain",
        "consumers stand still while minutes of their work come",
        together(_DEAD, piling(Kind(max_tokens=4000, patience_s=300), 8, most=200, cancels=True)),
        300,
    ),
    "streams-not-committing": Incident(
        "RampmeterStreamsNotCommitting",
        "Redis stands still under load, and what was used cannot be charged",
        together(sending(_SHORT, _BUSY_PER_S), later(cutting_off("streams", "redis"), _LATER_S)),
        240,
    ),
    "consumer-not-committing": Incident(
        "RampmeterConsumerNotCommitting",
        "Redis stands still, and consumers may begin nothing of what they have fetched",
        together(
            sending(Kind(max_tokens=20, patience_s=_PATIENT_S), _CALM_PER_S), later(standing_still("redis"), _LATER_S)
        ),
        780,
    ),
    "starvation": Incident(
        "RampmeterStarvation",
        "consumers stand still until work has waited longer than its class may",
        together(_DEAD, piling(Kind(max_tokens=20, patience_s=_PATIENT_S), 1, most=20)),
        480,
    ),
    "redis-degraded": Incident(
        "RampmeterRedisDegraded",
        "Redis stands still",
        together(sending(_SHORT, _CALM_PER_S), standing_still("redis")),
        120,
    ),
    "ledger-drift": Incident(
        "RampmeterLedgerDrift",
        "Redis drops what a running request holds",
        forgetting_a_request(Kind(max_tokens=16_000, patience_s=_PATIENT_S)),
        180,
    ),
    "unreserved": Incident(
        "RampmeterUnreserved",
        "Redis stands still for a while; what is admitted meanwhile is charged without a reservation",
        together(sending(Kind(max_tokens=20, patience_s=60), _BUSY_PER_S), for_a_while(standing_still("redis"), 20)),
        180,
    ),
    "ledger-lost": Incident(
        "RampmeterLedgerLost",
        "Redis loses its balances, and no worker gets to rebuild them",
        forgetting_a_ledger,
        150,
    ),
    "dead-letters": Incident("RampmeterDeadLetters", "records come that nobody can read", garbage(1.0), 60),
    "scaler-blind": Incident("RampmeterScalerBlind", "the autoscaler stands still", standing_still("autoscaler"), 180),
    "scaler-at-limit": Incident(
        "RampmeterScalerAtLimit", "a tenant asks for more than the largest fleet can do", _FLOOD, 600, _PAUSE
    ),
    "shorts-burn-fast": Incident(
        "RampmeterShortsBurnFast", "as shorts-slow, until the error budget burns", _HELD_UP, 480
    ),
    "shorts-burn-slow": Incident("RampmeterShortsBurnSlow", "as shorts-slow, for over an hour", _HELD_UP, 4200),
}
"""By name."""
