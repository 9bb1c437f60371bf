"""The price and the length class of a verified request, from what is known of its like.  Pure."""

from dataclasses import dataclass

from streams.policy import length
from streams.policy.cost import Expected
from streams.policy.length import Evidence, Limits, Mode
from topics.records import Price, Request


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that decide about the length."""

    mode: Mode
    long_max_tokens: int
    long_service_s: float


def decide(request: Request, expected: Expected, pool: str, rules: Rules, long_units: float) -> Price:
    """What a request is expected to cost, and its class; above `long_units` it is long."""
    declared = None if request.max_tokens is None else request.max_tokens * request.choices
    evidence = Evidence(declared, expected.units, expected.service_s)
    limits = Limits(rules.long_max_tokens, long_units, rules.long_service_s)
    return Price(
        pool=pool,
        length=length.classify(rules.mode, evidence, limits),
        expected_output_tokens=expected.output_tokens,
        cost_units=round(expected.units, 3),
        coefficient=expected.coefficient,
        kv_token_s=round(expected.kv_token_s, 3),
        service_s=expected.service_s,
    )
