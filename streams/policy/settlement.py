"""What a finished attempt is charged.  Pure."""

from collections.abc import Mapping

from topics.records import Tokens, Usage
from topics.settings import Model


def real_units(usage: Usage, models: Mapping[str, Model]) -> float:
    """Cost of the measured tokens at the price of admission; what never reached an engine has none.

    A model that the settings no longer know costs what was reserved.
    """
    model = models.get(usage.model)
    if model is None:
        return usage.reserved_units
    return units(usage.tokens, model, usage.coefficient)


def units(tokens: Tokens, model: Model, coefficient: float | None) -> float:
    """Cost of measured tokens at a coefficient, the model's own if none is given."""
    cached = min(tokens.cached, tokens.prompt)
    return model.units(tokens.prompt, tokens.output, cached=cached, coefficient=coefficient)
