import pytest

from gpu_consumers.policy.static_batch import Dispatch, Rules, Wait, Waiting, plan
from topics.records import Tier

RULES = Rules(4, {Tier.HIGH: 0.01, Tier.AGED: 0.01, Tier.MEDIUM: 0.03, Tier.LOW: 0.1})
NOW_S = 100.0


def decide(is_free=True, now_s=NOW_S, **waiting):
    return plan({model: Waiting(*of_model) for model, of_model in waiting.items()}, RULES, now_s, is_free=is_free)


def test_nothing_that_waits_is_waited_for_without_a_time():
    assert decide() == Wait()


@pytest.mark.parametrize(("tier", "window_s"), list(RULES.window_s.items()))
def test_a_request_waits_the_window_of_its_tier_for_others(tier, window_s):
    alone = (1, ((tier, NOW_S),))
    assert decide(a=alone) == Wait(NOW_S + window_s)
    assert decide(a=alone, now_s=NOW_S + window_s) == Dispatch(frozenset("a"))


def test_a_full_batch_goes_at_once():
    assert decide(a=(3, ((Tier.LOW, NOW_S),))) == Wait(NOW_S + 0.1)
    assert decide(a=(4, ((Tier.LOW, NOW_S),))) == Dispatch(frozenset("a"))


def test_the_first_window_that_ends_takes_the_low_along():
    both = (2, ((Tier.LOW, NOW_S), (Tier.HIGH, NOW_S + 0.005)))
    assert decide(a=both) == Wait(NOW_S + 0.015)


def test_no_batch_goes_while_the_engine_has_one():
    assert decide(is_free=False, a=(9, ((Tier.HIGH, 0.0),))) == Wait()


def test_models_are_looked_at_one_by_one():
    waiting = {"a": (3, ((Tier.HIGH, NOW_S),)), "b": (4, ((Tier.LOW, NOW_S),)), "c": (1, ((Tier.LOW, NOW_S - 1),))}
    assert decide(**waiting) == Dispatch(frozenset("bc"))
    assert decide(a=waiting["a"], d=(3, ((Tier.LOW, NOW_S - 0.095),))) == Wait(pytest.approx(NOW_S + 0.005))
