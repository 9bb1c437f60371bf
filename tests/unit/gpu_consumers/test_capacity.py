import random

import pytest

from gpu_consumers.engines.iteration_model import PRESETS, IterationModel, Mark, Sequence
from gpu_consumers.policy import capacity
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.capacity import FASTEST, HALF_LIFE_S, LEAST_S, Interval, Rules, Seen, look, rules

RULES = Rules()


def after(*intervals, seen=None):
    for interval in intervals:
        seen = look(seen or Seen(), interval, RULES)
    return seen


def waited(took_s=0.1, done_units=50.0, inside_units=3000.0):
    return Interval(took_s, True, done_units, inside_units)


def figures(seen):
    return capacity.units_per_s(seen, RULES), capacity.units(seen, RULES)


def test_nothing_is_known_before_work_has_waited_for_long_enough():
    seen = after(*[waited()] * 19)
    assert figures(seen) == (None, None)
    assert figures(look(seen, waited(0.11, 55.0), RULES)) == (pytest.approx(500.0), pytest.approx(3000.0))


def test_time_without_waiting_work_changes_nothing_however_idle():
    seen = after(*[waited()] * 30)
    idle = Interval(5.0, False, 0.0, 0.0)
    assert after(*[idle] * 100, seen=seen) == seen


def test_what_is_known_follows_a_change_by_half_in_a_half_life():
    seen = after(*[waited(1.0, 500.0)] * 200)
    seen = after(*[waited(1.0, 1000.0, 5000.0)] * int(HALF_LIFE_S), seen=seen)
    assert figures(seen) == (pytest.approx(750.0, rel=1e-3), pytest.approx(4000.0, rel=1e-3))


@pytest.mark.parametrize(("speed", "times"), [(0.5, 1), (1, 1), (2, 2), (1000, FASTEST)])
def test_a_faster_engine_is_known_sooner_within_bounds(speed, times):
    assert rules(speed) == Rules(LEAST_S / times, HALF_LIFE_S / times)


@pytest.mark.parametrize(("output_tokens", "done"), [(0, 20.0), (50, 60.0), (100, 100.0), (900, 100.0)])
def test_a_running_job_has_done_its_prompt_and_what_it_generated(output_tokens, done):
    assert capacity.done_units(Ask(10, 100, 100.0, 20.0), output_tokens) == pytest.approx(done)


class Plant:
    """The simulated engine's model, kept full, seen ten times a second."""

    def __init__(self, outputs, window):
        self.model, self.window = IterationModel(PRESETS["a100-8b"], window, 2048), window
        self.outputs, self.random = outputs, random.Random(1)
        self.inside, self.completed, self.unprefilled = {}, 0.0, 0

    def fill(self, now_s):
        while len(self.inside) < self.window and self.unprefilled + 300 <= 4096:
            sequence = Sequence("r", 300, self.random.choice(self.outputs))
            self.model.add(sequence, 0, now_s)
            cost_units = 0.067 * 300 + 0.27 * sequence.output_tokens
            self.inside[sequence] = Ask(300, sequence.output_tokens, cost_units, 0.067 * 300)
            self.unprefilled += 300

    def run_until(self, until_s):
        while (next_s := self.model.next_event_s()) is not None and next_s <= until_s:
            for event in self.model.advance(next_s):
                if event.mark is Mark.FIRST_TOKEN:
                    self.unprefilled -= 300
                else:
                    self.completed += self.inside.pop(event.sequence).cost_units
            self.fill(next_s)
        self.model.advance(until_s)

    def done_units(self):
        made = {sequence: self.model.tokens_made(sequence) for sequence in self.inside}
        return self.completed + sum(
            capacity.done_units(ask, made[sequence]) for sequence, ask in self.inside.items() if made[sequence]
        )


@pytest.mark.parametrize("outputs", [[200], range(1, 301), [20, 900]], ids=["equal", "mixed", "two kinds"])
def test_the_first_figure_is_already_near_what_the_engine_completes_in_the_long_run(outputs):
    plant, seen, first = Plant(outputs, 64), Seen(), None
    plant.fill(0.0)
    for turn in range(1, 1201):
        before, was_warm = plant.done_units(), plant.completed > 0
        plant.run_until(turn / 10)
        inside_units = sum(ask.cost_units for ask in plant.inside.values())
        seen = look(seen, Interval(0.1, was_warm, plant.done_units() - before, inside_units), RULES)
        first = first or capacity.units_per_s(seen, RULES)
    long_run_units_per_s = plant.completed / 120
    assert first == pytest.approx(long_run_units_per_s, rel=0.25)
    assert capacity.units_per_s(seen, RULES) == pytest.approx(long_run_units_per_s, rel=0.1)
