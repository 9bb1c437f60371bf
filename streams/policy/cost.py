"""What a request is expected to cost, in cost units, and what it did cost."""

from topics.records import Tokens
from topics.settings import Model


def prompt_tokens(text_bytes: int, model: Model) -> int:
    """Estimate of the prompt's tokens from its size; at least 1."""
    return max(1, round(text_bytes / model.bytes_per_token))


def expected_output_tokens(max_tokens: int | None, choices: int, model: Model) -> int:
    """Tokens that all choices together are expected to generate."""
    return choices * (model.default_output_tokens if max_tokens is None else max_tokens)


def units(prompt: int, output: int, model: Model) -> float:
    """Coefficient * (input weight * prompt tokens + output weight * output tokens); see topics.settings.Model."""
    return model.coefficient * (model.input_units_per_token * prompt + model.output_units_per_token * output)


def settled_units(tokens: Tokens, model: Model) -> float:
    """The same price for what was measured."""
    return units(tokens.prompt, tokens.output, model)
