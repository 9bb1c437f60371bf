import pytest

from streams.policy import cost, settlement
from tests.support.builders import request, usage
from topics.notes import Estimate
from topics.outcomes import Outcome
from topics.records import Tokens
from topics.settings import Model

MODEL = Model(
    coefficient=2.0, input_units_per_token=0.5, output_units_per_token=3.0, cached_units_per_token=0.1,
    bytes_per_token=4.0, context_tokens=4000, max_output_tokens=1000,
)  # fmt: skip
MODELS = {"llama-3-8b": MODEL}


def known(**fields):
    return Estimate(tenant="acme", model="llama-3-8b", template="", at_s=0.0, samples=50, **fields)


@pytest.mark.parametrize(("size_bytes", "tokens"), [(0, 1), (1, 1), (4, 1), (6, 2), (4000, 1000)])
def test_prompt_tokens_follow_the_size_and_are_never_zero(size_bytes, tokens):
    assert cost.prompt_tokens(size_bytes, MODEL) == tokens


@pytest.mark.parametrize(
    ("max_tokens", "choices", "learned", "tokens"),
    [
        (None, 1, None, 256),
        (None, 3, None, 768),
        (7, 1, None, 7),
        (7, 2, None, 14),
        (500, 1, 80.0, 80),
        (50, 1, 80.0, 50),
        (50, 2, 80.0, 80),
        (50, 2, 180.0, 100),
        (None, 1, 80.0, 80),
        (None, 1, 5000.0, 1000),
        (None, 2, 5000.0, 2000),
    ],
)
def test_expected_output_is_what_is_learned_within_what_all_choices_may_be(max_tokens, choices, learned, tokens):
    assert cost.output_tokens(max_tokens, choices, MODEL, learned) == tokens


@pytest.mark.parametrize(("ratio", "tokens"), [(None, 100), (4.0, 400), (0.001, 1), (100.0, 4000)])
def test_the_prompt_estimate_is_corrected_by_what_it_was_wrong_by(ratio, tokens):
    assert cost.real_prompt_tokens(100, MODEL, ratio) == tokens


def test_an_unknown_kind_is_priced_by_its_declaration():
    asked = cost.expect(request(prompt_tokens=10, max_tokens=5), MODEL, None, 2.0)
    assert (asked.units, asked.service_s) == (2.0 * (0.5 * 10 + 3.0 * 5), None)


def test_a_known_kind_is_priced_by_what_it_needed_and_by_the_coefficient_in_force():
    estimate = known(output_tokens=4.0, prompt_ratio=2.0, service_s=1.5)
    asked = cost.expect(request(prompt_tokens=10, max_tokens=100), MODEL, estimate, 3.0)
    assert asked == cost.Expected(20, 4, 3.0 * (0.5 * 20 + 3.0 * 4), 3.0, 1.5, (20 + 2) * 1.5)


def test_what_is_unknown_of_a_kind_falls_back_by_itself():
    asked = cost.expect(request(prompt_tokens=10, max_tokens=100), MODEL, known(prompt_ratio=2.0), 2.0)
    assert (asked.prompt_tokens, asked.output_tokens, asked.service_s) == (20, 100, None)


def test_memory_is_the_prompt_for_the_whole_time_and_the_output_for_half_of_it():
    assert cost.kv_token_s(100, 50, 0.0, 2.0) == 250.0
    assert cost.kv_token_s(100, 50, 1000.0, None) == 125.0


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED])
def test_what_ran_is_charged_by_its_tokens(outcome):
    assert settlement.real_units(usage(outcome=outcome, tokens=Tokens(prompt=10, output=5)), MODELS) == 40.0


@pytest.mark.parametrize("outcome", [Outcome.EXPIRED, Outcome.FAILED, Outcome.CANCELLED])
def test_what_never_ran_is_free(outcome):
    assert settlement.real_units(usage(outcome=outcome, tokens=Tokens(prompt=0, output=0)), MODELS) == 0.0


def test_cached_prompt_tokens_are_charged_at_their_own_price():
    assert settlement.real_units(usage(tokens=Tokens(prompt=10, output=0, cached=8)), MODELS) == pytest.approx(3.6)


def test_more_cached_tokens_than_the_prompt_has_give_nothing_back():
    assert settlement.real_units(usage(tokens=Tokens(prompt=10, output=0, cached=10**6)), MODELS) > 0


def test_an_attempt_is_settled_at_the_coefficient_of_its_admission():
    assert settlement.real_units(usage(tokens=Tokens(prompt=10, output=5), coefficient=1.0), MODELS) == 20.0


def test_a_model_that_is_gone_costs_what_was_reserved():
    assert settlement.real_units(usage(model="gone", reserved_units=9.0), MODELS) == 9.0
