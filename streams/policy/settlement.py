"""What a finished attempt is charged.  Pure."""

from collections.abc import Mapping

from topics.records import Usage
from topics.settings import Model


def real_units(usage: Usage, models: Mapping[str, Model]) -> float:
    """Cost of the measured tokens at the price of admission; what never reached an engine has none.

    A model that the settings no longer know costs what was reserved.
    """
    model = models.get(usage.model)
    if model is None:
        return usage.reserved_units
    tokens = usage.tokens
    cached = min(tokens.cached, tokens.prompt)
    return model.units(tokens.prompt, tokens.output, cached=cached, coefficient=usage.coefficient)
