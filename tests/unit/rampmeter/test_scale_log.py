"""How the autoscaler's decisions are shown."""

from autoscaler.policy import evidence, replicas
from autoscaler.policy.demand import Load
from autoscaler.policy.replicas import Memory, Reason
from autoscaler.settings import AutoscalerSettings
from rampmeter import scale_log
from topics.records import Decision
from topics.settings import load as load_settings

NOW_S = 1_000_000.0


def told(load, current, ago_s, **more):
    limits = load_settings(AutoscalerSettings, autoscaler={"up_after_s": 0}).limits("default")
    made = replicas.decide(load, current, Memory(), limits, 5.0)
    inputs = evidence.of(load, current, Memory(), limits, 5.0) | evidence.of_made(made) | more
    return Decision(
        id="default", stage="scale", verdict=evidence.verdict(made, current), reason=made.reason, at_s=NOW_S - ago_s,
        by="autoscaler", inputs={name: value for name, value in inputs.items() if value is not None},
    )  # fmt: skip


def test_each_decision_has_its_inputs_in_a_row_and_each_reason_its_words():
    grown = told(Load(300, ((0.0, 7500.0, 0.0, 0.0),) * 4, 10.0, 1000.0, ready=1, running_units=12.0), 1, 150.0)
    blind = told(None, 4, 5.0, problem="no answer\x1b[2J")
    text = scale_log.render([grown, blind], NOW_S)
    titles, first, second, _, *legend = text.splitlines()
    assert titles.split("  ")[0].strip() == "AGO"
    assert first.split() == [
        "2m", "default", "1", ">", "3", "scale_up", "300", "0.0", "30,000", "unknown", "12", "10", "unknown",
        "1,000", "1", "3.0", "2.5",
    ]  # fmt: skip
    assert second.split() == ["5s", "default", "4", "lag_unavailable", *["unknown"] * 11]
    assert legend == [
        f"scale_up: {scale_log.WORDS[Reason.SCALE_UP]}",
        f"lag_unavailable: {scale_log.WORDS[Reason.LAG_UNAVAILABLE]}",
        "default: no answer\\x1b[2J",
    ]


def test_every_reason_has_words_and_one_of_another_version_is_no_failure():
    assert set(scale_log.WORDS) == set(Reason)
    other = Decision(id="default", stage="scale", verdict="hold", reason="moon", at_s=NOW_S, by="autoscaler")
    assert "moon: of another version" in scale_log.render([other], NOW_S)
