import pytest

from gpu_consumers.policy.batching import Ask, InFlight, Limits, Verdict, ask_of, judge
from tests.support.builders import work
from topics.settings import Model

LIMITS = Limits(sequences=4, kv_tokens=10_000, prefill_tokens=4096)


def ask(prompt_tokens=1000, expected_output_tokens=200, cost_units=100.0):
    return Ask(prompt_tokens, expected_output_tokens, cost_units)


@pytest.mark.parametrize(
    ("held", "job", "verdict"),
    [
        (InFlight(), ask(), Verdict.ENTER),
        (InFlight(sequences=3, kv_tokens=3600), ask(), Verdict.ENTER),
        (InFlight(sequences=4, kv_tokens=4800), ask(), Verdict.SEQUENCES),
        (InFlight(sequences=2, kv_tokens=8800), ask(), Verdict.ENTER),
        (InFlight(sequences=2, kv_tokens=8801), ask(), Verdict.KV_TOKENS),
        (InFlight(sequences=2, prefill_tokens=3096), ask(), Verdict.ENTER),
        (InFlight(sequences=2, prefill_tokens=3097), ask(), Verdict.PREFILL_TOKENS),
    ],
)
def test_a_job_enters_up_to_each_limit_and_not_beyond(held, job, verdict):
    assert verdict == judge(job, held, LIMITS)


def test_an_empty_engine_takes_any_job():
    assert judge(ask(prompt_tokens=1_000_000, cost_units=1e9), InFlight(), LIMITS) == Verdict.ENTER


def test_a_prompt_beyond_the_prefill_bound_enters_once_nothing_else_is_unprefilled():
    huge = ask(prompt_tokens=9000)

    assert judge(huge, InFlight(sequences=1, prefill_tokens=1), LIMITS) == Verdict.PREFILL_TOKENS
    assert judge(huge, InFlight(sequences=1, prefill_tokens=0), LIMITS) == Verdict.ENTER


def test_absent_limits_do_not_bind():
    limits = Limits(kv_tokens=None)

    assert judge(ask(), InFlight(sequences=1, kv_tokens=10**9, cost_units=1e12), limits) == Verdict.ENTER


@pytest.mark.parametrize("had_first_token", [True, False])
def test_what_entered_and_left_leaves_nothing_behind(had_first_token):
    held, job = InFlight(), ask(cost_units=0.1)
    for _ in range(3):
        held = held.entered(job)
    for _ in range(3):
        held = (held.prefilled(job) if had_first_token else held).left(job, had_first_token=had_first_token)

    assert InFlight() == held


def test_the_first_token_frees_the_prefill_and_nothing_else():
    job = ask()
    held = InFlight().entered(job)

    assert InFlight(1, 1200, 0, 100.0) == held.prefilled(job)


def test_a_job_asks_for_its_estimates_and_knows_the_prompts_part_of_its_cost():
    made = work({"prompt_tokens": 1000}, {"expected_output_tokens": 200, "cost_units": 242.0})
    asked = ask_of(made, Model(input_units_per_token=0.067, output_units_per_token=0.27))
    assert (asked.kv_tokens, asked.cost_units) == (1200, 242.0)
    assert asked.prompt_units == pytest.approx(242.0 * 67 / 121)
    assert ask_of(made, None).prompt_units == 0.0
