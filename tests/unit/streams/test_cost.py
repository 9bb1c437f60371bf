import pytest

from streams.policy import cost, settlement
from topics.outcomes import Outcome
from topics.records import Length, Priority, Tokens, Usage
from topics.settings import Model

MODEL = Model(coefficient=2.0, input_units_per_token=0.5, output_units_per_token=3.0, bytes_per_token=4.0)


def usage(outcome, prompt=10, output=5):
    return Usage(
        id="r1", tenant="acme", pool="default", model="m", priority=Priority.HIGH, length=Length.SHORT, outcome=outcome,
        attempt=1, reserved_units=9.0, tokens=Tokens(prompt=prompt, output=output), finished_s=1.0, consumer="c",
    )  # fmt: skip


@pytest.mark.parametrize(("size_bytes", "tokens"), [(0, 1), (1, 1), (4, 1), (6, 2), (4000, 1000)])
def test_prompt_tokens_follow_the_size_and_are_never_zero(size_bytes, tokens):
    assert cost.prompt_tokens(size_bytes, MODEL) == tokens


@pytest.mark.parametrize(("max_tokens", "choices", "tokens"), [(None, 1, 256), (None, 3, 768), (7, 1, 7), (7, 2, 14)])
def test_expected_output_counts_all_choices(max_tokens, choices, tokens):
    assert cost.expected_output_tokens(max_tokens, choices, MODEL) == tokens


def test_units_weigh_input_and_output_by_the_model():
    assert cost.units(10, 5, MODEL) == 2.0 * (0.5 * 10 + 3.0 * 5)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED])
def test_what_ran_is_charged_by_its_tokens(outcome):
    assert settlement.real_units(usage(outcome), MODEL) == 40.0


def test_what_never_ran_is_free():
    assert settlement.real_units(usage(Outcome.EXPIRED), MODEL) == 0.0
    assert settlement.real_units(usage(Outcome.FAILED, 0, 0), MODEL) == 0.0
