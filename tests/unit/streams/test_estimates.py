import pytest

from streams import estimates
from streams.estimates import Estimates
from streams.settings import Calibration, History, Streams, StreamsSettings
from tests.support.clock import FakeClock
from topics.notes import Estimate
from topics.settings import Model

MODELS = {"m": Model(coefficient=2.0), "fixed": Model(coefficient=3.0, calibrate=False)}


def made(clock=None, *, enabled=True, max_kinds=3):
    section = Streams(history=History(kept_s=3600, max_kinds=max_kinds), calibration=Calibration(enabled=enabled))
    settings = StreamsSettings(streams=section, models=MODELS, default_model="m")
    return Estimates(settings, clock or FakeClock(wall_s=0.0))


def known(template="t", at_s=0.0, **fields):
    return Estimate(tenant="acme", model="m", template=template, at_s=at_s, samples=20, **fields)


def calibrated(coefficient, model="m", at_s=0.0):
    return Estimate(tenant="", model=model, template="", at_s=at_s, samples=200, coefficient=coefficient)


def test_a_kind_is_known_by_tenant_model_and_template():
    estimates = made()
    estimates.note(known(output_tokens=9.0))
    assert estimates.of("acme", "m", "t").output_tokens == 9.0
    assert [estimates.of(*other) for other in (("evil", "m", "t"), ("acme", "n", "t"), ("acme", "m", ""))] == [None] * 3


def test_the_last_word_counts():
    estimates = made()
    for tokens in (9.0, 5.0):
        estimates.note(known(output_tokens=tokens))
    assert estimates.of("acme", "m", "t").output_tokens == 5.0


def test_an_estimate_that_nobody_renewed_is_unknown():
    clock = FakeClock(wall_s=0.0)
    estimates = made(clock)
    estimates.note(known())
    clock.advance(3600)
    assert estimates.of("acme", "m", "t") is not None
    clock.advance(1)
    assert estimates.of("acme", "m", "t") is None


def test_an_estimate_from_the_future_is_over_in_its_time_too():
    clock = FakeClock(wall_s=0.0)
    estimates = made(clock)
    estimates.note(known(at_s=1e9))
    estimates.note(calibrated(2.5, at_s=1e9))
    assert estimates.calibrated("m").at_s == 0.0
    clock.advance(3601)
    assert estimates.of("acme", "m", "t") is None


def test_the_kind_that_was_told_of_longest_ago_is_forgotten():
    estimates = made()
    for template in ("a", "b", "c", "a", "d"):
        estimates.note(known(template))
    assert [estimates.of("acme", "m", template) is not None for template in "abcd"] == [True, False, True, True]


@pytest.mark.parametrize(("told", "held"), [(None, 2.0), (2.5, 2.5), (100.0, 20.0), (0.001, 0.2), (0.0, 2.0)])
def test_a_coefficient_is_the_calibrated_one_within_the_range_of_the_settings(told, held):
    estimates = made()
    estimates.note(calibrated(told))
    assert estimates.coefficient("m") == held


def test_the_settings_overrule_calibration_for_one_model_or_for_all():
    estimates = made()
    estimates.note(calibrated(9.0, "fixed"))
    assert estimates.coefficient("fixed") == 3.0
    off = made(enabled=False)
    off.note(calibrated(9.0))
    assert off.coefficient("m") == 2.0


def test_models_that_the_settings_do_not_know_leave_no_trace():
    estimates = made()
    estimates.note(calibrated(9.0, "other"))
    assert estimates.calibrated("other") is None


def test_one_that_never_started_can_be_stopped():
    made().stop()


def test_a_broker_that_is_away_is_waited_for(monkeypatch):
    monkeypatch.setattr(estimates, "_ENDS_S", 0.1)
    following = Estimates(StreamsSettings(kafka={"bootstrap.servers": "127.0.0.1:1"}), FakeClock())
    following.start()
    assert not following.wait_ready(0.5)
    assert following._thread.is_alive()
    following.stop()
