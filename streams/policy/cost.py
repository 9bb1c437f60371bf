"""What a request is expected to cost.  Pure; cost units as in `topics.settings.Model`."""

from dataclasses import dataclass

from topics.notes import Estimate
from topics.records import Request, Tokens
from topics.settings import Model


@dataclass(frozen=True, slots=True)
class Expected:
    """What a request is expected to need."""

    prompt_tokens: int
    output_tokens: int
    """Of all choices together."""
    units: float
    coefficient: float
    service_s: float | None
    """Time in the engine that the quantile of its kind does not exceed; None while its kind is unknown."""
    kv_token_s: float


def prompt_tokens(text_bytes: int, model: Model) -> int:
    """Estimate of the prompt's tokens from its size; at least 1."""
    return max(1, round(text_bytes / model.bytes_per_token))


def expect(request: Request, model: Model, known: Estimate | None, coefficient: float) -> Expected:
    """Price a request; `known` is what its kind needed so far, all choices together."""
    prompt = real_prompt_tokens(request.prompt_tokens, model, known.prompt_ratio if known else None)
    output = output_tokens(request.max_tokens, request.choices, model, known.output_tokens if known else None)
    units = model.units(prompt, output, coefficient=coefficient)
    service_s = known.service_s if known else None
    return Expected(prompt, output, units, coefficient, service_s, kv_token_s(prompt, output, units, service_s))


def real_prompt_tokens(estimated: int, model: Model, ratio: float | None) -> int:
    """The estimate from the size, corrected by what it was wrong by so far; at most the context."""
    return estimated if ratio is None else max(1, min(model.context_tokens, round(estimated * ratio)))


def output_tokens(max_tokens: int | None, choices: int, model: Model, learned: float | None) -> int:
    """Tokens that all choices together are expected to generate: what its kind does, at most what it declares."""
    if learned is None:
        return choices * (model.default_output_tokens if max_tokens is None else max_tokens)
    return min(round(learned), choices * (model.max_output_tokens if max_tokens is None else max_tokens))


def kv_token_s(prompt: int, output: int, units: float, service_s: float | None) -> float:
    """Expected memory times time; of an unknown kind the time is that of a unit a millisecond, the least it can be."""
    return Tokens(prompt=prompt, output=output).kv_token_s(units / 1000 if service_s is None else service_s)
