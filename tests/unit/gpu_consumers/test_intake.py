import pytest

from gpu_consumers.policy.intake import Intake, Limits, State, judge

LIMITS = Limits(temperature_c=90.0, memory_used_ratio=0.99)
HOT, FULL = Intake(frozenset({"temperature"})), Intake(frozenset({"memory"}))


@pytest.mark.parametrize(
    ("before", "temperature_c", "memory_used_ratio", "after"),
    [
        (Intake(), 90.0, 0.99, Intake()),
        (Intake(), 90.1, 0.5, HOT),
        (Intake(), 60.0, 0.995, FULL),
        (Intake(), 95.0, 0.995, Intake(frozenset({"temperature", "memory"}))),
        (HOT, 86.0, 0.5, HOT),
        (HOT, 85.0, 0.5, Intake()),
        (FULL, 60.0, 0.98, FULL),
        (FULL, 60.0, 0.96, Intake()),
        (HOT, 80.0, 0.995, FULL),
    ],
)
def test_intake_closes_above_a_limit_and_opens_well_below_it(before, temperature_c, memory_used_ratio, after):
    assert judge(before, State(temperature_c, memory_used_ratio), LIMITS) == after


@pytest.mark.parametrize("before", [Intake(), HOT, FULL])
def test_what_is_unknown_changes_nothing(before):
    assert judge(before, State(), LIMITS) == before


def test_it_says_why():
    assert (str(Intake()), str(HOT)) == ("open", "closed by temperature")


def test_an_engine_that_takes_nothing_closes_it_and_opens_it_again():
    closed = judge(HOT, State(95.0, 0.5, is_engine_open=False), LIMITS)
    assert str(closed) == "closed by engine and temperature"
    assert judge(closed, State(80.0, 0.5), LIMITS) == Intake()
