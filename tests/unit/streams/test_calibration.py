import random

import pytest

from gpu_consumers.engines.iteration_model import PRESETS, IterationModel, Mark, Sequence
from streams.policy import calibration
from streams.policy.calibration import Rules, Sketch
from tests.support.builders import usage
from topics.records import Tokens
from topics.settings import Model

RULES = Rules(min_samples=20, step_ratio=0.1, range_ratio=10.0, min_shared=32.0)
MODEL = Model(input_units_per_token=0.1, output_units_per_token=1.0)


def measured(slope, count=1, shared=64, prompt=100, output=90, **fields):
    """Usages of 100 weighted tokens each by default, whose engine time is `slope` ms per weighted token."""
    engine_s = slope * (0.1 * prompt + output) / 1000
    tokens = Tokens(prompt=prompt, output=output)
    return [usage(tokens=tokens, **{"engine_s": engine_s, "service_s": engine_s * shared, **fields})] * count


def sketch(*usages, rules=RULES, model=MODEL):
    made = Sketch(since_s=0.0)
    for one in usages:
        made.add(one, model, rules)
    return made


def step(made, current=1.0, configured=1.0):
    return calibration.next_coefficient(made, current, configured, RULES)


@pytest.mark.parametrize(("slope", "expected"), [(5.0, 1.1), (0.2, 0.9), (1.06, 1.06), (0.94, 0.94)])
def test_a_step_goes_towards_what_was_measured_and_no_farther_than_allowed(slope, expected):
    assert step(sketch(*measured(slope, 20))) == pytest.approx(expected, rel=0.045)


def test_steps_end_at_the_measured_slope_and_stay_there():
    current, made = 1.0, sketch(*measured(2.5, 50))
    for _ in range(100):
        current = step(made, current) or current
    assert current == pytest.approx(2.5, rel=0.09)
    assert step(made, current) is None


@pytest.mark.parametrize("slope", [1e6, 1e-6])
def test_the_coefficient_never_leaves_its_range(slope):
    current, made = 2.0, sketch(*measured(slope, 50))
    for _ in range(200):
        current = step(made, current, configured=2.0) or current
        assert 0.2 <= current <= 20.0
    assert current == pytest.approx(20.0 if slope > 1 else 0.2, rel=0.05)


def test_too_few_samples_change_nothing():
    assert step(sketch(*measured(5.0, 19))) is None
    assert step(sketch(*measured(5.0, 20))) is not None


@pytest.mark.parametrize("fields", [{"engine_s": None}, {"engine_s": 0.0}, {"service_s": None}])
def test_unknown_times_freeze_it(fields):
    made = sketch(*measured(5.0, 100, **fields))
    assert made.samples == 0
    assert step(made) is None


def test_time_that_no_one_else_wanted_does_not_count():
    assert sketch(*measured(5.0, 100, shared=31)).samples == 0
    assert sketch(*measured(5.0, 100, shared=33)).samples == 100


def test_what_never_ran_does_not_count():
    assert sketch(*[usage(tokens=Tokens(prompt=0, output=0), engine_s=1.0, service_s=99.0)] * 30).samples == 0


def test_four_in_ten_wild_measurements_move_nothing():
    made = sketch(*measured(1.0, 60), *measured(500.0, 40))
    assert step(made) is None


def test_a_request_counts_by_its_weight_as_a_line_through_the_origin_does():
    small, large = measured(4.0, 60, prompt=10, output=9), measured(1.0, 10)
    assert step(sketch(*small, *large)) is None, "60 small ones weigh less than 10 ten times as large"


def test_cached_prompt_tokens_weigh_what_they_cost():
    tokens = Tokens(prompt=1000, output=90, cached=1000)
    made = sketch(*[usage(tokens=tokens, engine_s=0.0967, service_s=10.0)] * 30)
    assert step(made) is None


def test_a_coefficient_is_held_to_the_range_of_the_settings():
    assert calibration.bounded(50.0, 2.0, 10.0) == 20.0
    assert calibration.bounded(0.01, 2.0, 10.0) == 0.2
    assert calibration.bounded(3.0, 2.0, 10.0) == 3.0


def simulated(preset, at_once, count=600):
    """Usages of an engine that always has this many requests inside."""
    rng = random.Random(1)
    engine, now_s, started, usages = IterationModel(PRESETS[preset]), 0.0, {}, []

    def add():
        prompt = int(min(8000, max(10, rng.lognormvariate(6.5, 1.0))))
        sequence = Sequence(str(len(started)), prompt, int(min(1000, max(5, rng.lognormvariate(4.8, 0.9)))))
        started[sequence] = now_s
        engine.add(sequence, 0, now_s)

    for _ in range(at_once):
        add()
    while (next_s := engine.next_event_s()) is not None:
        now_s = next_s + 1e-9
        for event in engine.advance(now_s):
            if event.mark is Mark.FINISHED:
                done = event.sequence
                tokens = Tokens(prompt=done.prompt_tokens, output=done.output_tokens)
                service_s = event.at_s - started[done]
                usages.append(usage(tokens=tokens, engine_s=done.engine_s, service_s=service_s))
                if len(started) < count:
                    add()
    return usages


@pytest.mark.parametrize(("preset", "coefficient"), [("a100-8b", 1.0), ("h100-8b", 0.42), ("a100-70b-tp4", 2.3)])
def test_the_default_weights_are_those_of_a_full_simulated_a100_with_an_8b_model(preset, coefficient):
    made = sketch(*simulated(preset, 64), model=Model())
    assert made.slopes.centre(0.5) == pytest.approx(coefficient, rel=0.1)


def test_a_simulated_engine_that_is_almost_idle_teaches_nothing():
    assert step(sketch(*simulated("a100-8b", 4), model=Model())) is None
