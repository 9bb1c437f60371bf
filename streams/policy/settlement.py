"""What a finished attempt is charged.  Pure."""

from streams.policy import cost
from topics.outcomes import Outcome
from topics.records import Usage
from topics.settings import Model


def real_units(usage: Usage, model: Model) -> float:
    """Cost of the measured tokens; what never reached an engine costs nothing."""
    if usage.outcome is Outcome.EXPIRED:
        return 0.0
    return cost.settled_units(usage.tokens, model)
