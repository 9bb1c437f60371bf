"""Logged requests simulated again, under the settings of the log and under others."""

from dataclasses import replace

import msgspec
import pytest

from autoscaler.settings import AutoscalerSettings
from gpu_consumers.settings import Gpu, GpuSettings
from rampmeter import workload
from rampmeter.hindsight import figures, load, overrides, what_if
from rampmeter.hindsight.figures import End
from rampmeter.hindsight.load import Load, Log, Told
from rampmeter.hindsight.redecide import Books
from rampmeter.hindsight.what_if import Case
from rampmeter.simulation.baselines import Slo
from rampmeter.workload import Row
from streams.settings import StreamsSettings
from tests.support.builders import WALL_S, request
from topics.errors import ConfigError
from topics.notes import Estimate
from topics.outcomes import Outcome
from topics.records import Decision, Length, Origin, Priority, Reply, Tokens
from topics.timing import Timing

SETTINGS = StreamsSettings()
GPU = Gpu()
LOGGED = Case(SETTINGS, GPU, 2, "default")
NOTHING_KNOWN = Estimate(tenant="", model="", template="", at_s=0.0, samples=0)
UNSEEN = End("t", Priority.MEDIUM, Length.SHORT, Outcome.COMPLETED, 0.1, 0.2, 1.0, 5.0)


def told(row, **fields):
    asked = request(
        tenant=row.tenant or "acme", arrived_s=WALL_S + row.arrival_s, prompt_tokens=row.input_tokens,
        max_tokens=row.output_tokens, **fields,
    )  # fmt: skip
    tokens = Tokens(prompt=row.input_tokens, output=row.output_tokens)
    return Told(asked, NOTHING_KNOWN, 1.0, row.output_tokens, tokens, UNSEEN)


@pytest.fixture(scope="module")
def requests():
    """Some seconds of two engines near saturation; each fourth is of a tenant of its own."""
    rows = workload.paced(workload.generate_count(200, seed=4), 12.0)
    rows = [replace(row, tenant="few" if number % 4 == 0 else "many") for number, row in enumerate(rows)]
    return [told(row) for row in rows]


def case(*sets, replicas=2):
    changes = overrides.parsed(sets)
    return Case(
        overrides.changed(SETTINGS, changes), overrides.changed(GpuSettings(), changes).gpu, replicas, "default"
    )


def asked(requests, changed, truth=None):
    ends = truth or [one.end for one in requests]
    known = [replace(one, end=end) for one, end in zip(requests, ends, strict=True)]
    return what_if.run(Load(known, 0, 2, 0), LOGGED, changed, {})


def test_no_change_changes_nothing_and_a_log_that_the_model_made_has_no_error(requests):
    truth = what_if.simulate(requests, LOGGED, SETTINGS)
    found = asked(requests, case(), truth)
    assert found.truth == found.logged == found.changed
    assert set(found.difference.values()) <= {0.0, None}
    assert {error.ratio for error in found.error.values()} <= {0.0, None}
    assert found.truth.outcomes == {"completed": 200}


def test_the_error_is_that_of_the_model_under_the_logged_settings(requests):
    found = asked(requests, case(replicas=4))
    error = found.error["ttft_s.short.p50"]
    assert (error.truth, error.simulated) == (0.2, found.logged.ttft_s["short"]["p50"])
    assert error.ratio == pytest.approx(error.simulated / 0.2 - 1, abs=1e-3)
    assert found.error["outcomes.completed"].ratio == 0.0


def test_fewer_replicas_let_wait_longer_and_more_let_wait_less(requests):
    fewer, more = (asked(requests, case(replicas=count)) for count in (1, 4))
    assert fewer.difference["wait_s.medium.p99"] > 1
    assert more.difference["wait_s.medium.p99"] < 0
    assert fewer.difference["goodput_ratio"] < 0
    assert (fewer.idle_replicas, more.idle_replicas) == (0, 0)


def test_replicas_beyond_the_lane_partitions_are_told_apart(requests):
    assert asked(requests[:5], case("pools.default.lane_partitions=3", replicas=5)).idle_replicas == 2


@pytest.mark.parametrize("name", ["tenant_budgets.many", "global_budget", "pool_budget", "class_budgets.medium"])
def test_a_smaller_budget_of_any_level_refuses_what_it_cannot_pay(requests, name):
    bound = (f"streams.{name}.refill_units_per_s=100", f"streams.{name}.burst_s=30")
    found = asked(requests, case(*bound, "streams.max_deferral_s=2"))
    assert found.logged.outcomes == {"completed": 200}
    assert found.changed.outcomes["rejected_budget"] > 20
    assert found.difference["outcomes.rejected_budget"] == found.changed.outcomes["rejected_budget"]
    few, many = (found.difference[f"cost_units.{tenant}"] for tenant in ("few", "many"))
    assert many < 0
    assert (few == 0) == name.startswith("tenant")


def test_a_class_that_may_not_wait_is_refused_and_a_price_moves_the_cost(requests):
    impatient = asked(requests, case("streams.max_wait_s.medium=0.5", replicas=1))
    assert impatient.changed.outcomes["rejected_overload"] > 0
    dearer = asked(requests, case("models.llama-3-8b.coefficient=2"))
    assert dearer.changed.cost_units["few"] == pytest.approx(2 * dearer.logged.cost_units["few"], rel=1e-3)


def test_what_waits_for_longer_than_memory_holds_it_comes_back_after_the_delay_of_its_topic():
    one = told(Row(0.0, 1000, 1000, "a"))
    poor = ("streams.tenant_budgets.acme.refill_units_per_s=100", "streams.tenant_budgets.acme.burst_s=30")
    delays = {name: case(*poor, f"topics.defer_delays_s={name}") for name in ("[1]", "[30]")}
    waits_s = {name: asked([one], changed).changed.wait_s["medium"]["p50"] for name, changed in delays.items()}
    assert 3.3 < waits_s["[1]"] < 4.5
    assert 30.0 < waits_s["[30]"] < 30.5


def test_a_faster_engine_answers_sooner(requests):
    found = asked(requests, case("gpu.speed=4"))
    assert found.changed.e2e_s["short"]["p50"] < found.logged.e2e_s["short"]["p50"] / 2


@pytest.mark.parametrize("name", ["streams.batch_events", "gpu.lease_s", "streams.tenant_budget.warm_up_s"])
def test_a_setting_that_the_simulation_does_not_follow_is_refused(name):
    with pytest.raises(ConfigError, match=rf"--set {name}: the simulation does not follow"):
        what_if.require_simulated([name], is_scaled=True)


def test_the_autoscalers_settings_count_where_one_sized_the_fleet():
    what_if.require_simulated(["autoscaler.target_drain_s"], is_scaled=True)
    with pytest.raises(ConfigError, match=r"does not follow this setting; no autoscaler changed this fleet"):
        what_if.require_simulated(["autoscaler.target_drain_s"], is_scaled=False)


def test_a_fleet_that_an_autoscaler_sized_is_sized_again_and_a_number_of_replicas_holds_it(requests):
    wanted = overrides.parsed(["autoscaler.pools.default.min_replicas=1", "autoscaler.pools.default.max_replicas=4"])
    scaler = overrides.changed(AutoscalerSettings(autoscaler={"pools": {"default": {}}}), wanted)
    settings, scaled = (SETTINGS, GpuSettings(), scaler), Load(requests, 0, 3, 0, is_scaled=True)
    sized, held = (what_if.case(scaled, settings, "default", count) for count in (None, 4))
    assert (sized.replicas, sized.scaling.max_replicas, held.replicas, held.scaling) == (1, 4, 4, None)
    assert what_if.case(replace(scaled, is_scaled=False), settings, "default", None).replicas == 3
    found = what_if.run(scaled, sized, held, {})
    assert found.is_scaled
    assert found.difference["wait_s.medium.p99"] < 0


def test_settings_that_it_follows_are_those_of_the_product():
    scaler = AutoscalerSettings(autoscaler={"pools": {"default": {}}})
    names = {name for kind in (SETTINGS, GpuSettings(), scaler) for name in overrides.names(kind)}
    patterns = (*what_if.SIMULATED, *what_if.SCALED)
    follows = {pattern: [n for n in names if what_if.fnmatchcase(n, pattern)] for pattern in patterns}
    assert [pattern for pattern, found in follows.items() if not found] == []


def admission(name="r1", **fields):
    inputs = {
        "seen_s": WALL_S, "long_units": 200.0, "tenant": "acme", "model": "llama-3-8b", "pool": "default",
        "template": "t", "priority": "medium", "length": "short", "length_claim": "short", "prompt_tokens": 100,
        "choices": 1, "expected_output_tokens": 256, "coefficient": 1.5, "arrived_s": WALL_S, **fields,
    }  # fmt: skip
    return Decision(
        id=name, stage="admission", verdict="admit", reason="none", at_s=WALL_S, by="w", inputs=inputs,
        settings_hash=SETTINGS.short_hash(),
    )  # fmt: skip


def settlement(name="r1", verdict="settled", **fields):
    inputs = {
        "pool": "default", "attempt": 1, "partial": False, "real_units": 7.5, "prompt_tokens": 90,
        "output_tokens": 40, "cached_tokens": 0, **fields,
    }  # fmt: skip
    return Decision(
        id=name, stage="settlement", verdict=verdict, reason="completed", at_s=WALL_S, by="w", inputs=inputs
    )


def reply(name="r1", **fields):
    timing = Timing(arrived_s=WALL_S, started_s=WALL_S + 1, first_token_s=WALL_S + 1.5, finished_s=WALL_S + 3)
    defaults = {"outcome": Outcome.COMPLETED, "timing": timing, "consumer": "c1", "length": Length.SHORT}
    return Reply(id=name, origin=Origin(topic="t", partition=0, offset=0), **{**defaults, **fields})


def read(*records):
    log = Log("default", WALL_S - 1)
    for record in records:
        (log.reply if isinstance(record, Reply) else log.decision)(record)
    return log.load(SETTINGS)


def test_a_request_is_told_by_its_first_entry_its_settlements_and_its_answer():
    found = read(
        admission(), settlement(verdict="partial", partial=True, output_tokens=10, real_units=2.0),
        settlement(attempt=2), settlement(attempt=2), settlement(verdict="repeat", attempt=9), reply(),
        reply(consumer="c2"),
    )  # fmt: skip
    assert not found.is_scaled
    (one,) = found.requests
    assert one.end == End("acme", Priority.MEDIUM, Length.SHORT, Outcome.COMPLETED, 1.0, 1.5, 3.0, 9.5)
    assert (one.ran, one.coefficient, one.request.prompt_tokens) == (Tokens(prompt=90, output=40), 1.5, 100)
    assert (found.open, found.replicas, found.other_settings) == (0, 1, 0)


def test_a_fleet_is_scaled_when_the_autoscaler_changed_it():
    held = Decision(id="default", stage="scale", verdict="hold", reason="steady", at_s=WALL_S, by="autoscaler")
    up, other = (msgspec.structs.replace(held, verdict="up", id=name) for name in ("default", "cpu"))
    assert [read(made).is_scaled for made in (held, up, other)] == [False, True, False]


def test_what_is_open_of_another_pool_or_older_is_left_out_and_what_never_ran_has_no_output():
    rejected = reply("no", outcome=Outcome.REJECTED_BUDGET, timing=None, consumer=None)
    found = read(
        admission(), admission("no"), admission("cpu", pool="cpu"), admission("old", arrived_s=WALL_S - 9),
        msgspec.structs.replace(admission("away"), settings_hash="then"), reply(), rejected, reply("cpu"), reply("old"),
    )  # fmt: skip
    assert [one.request.id for one in found.requests] == ["r1", "no"]
    assert (found.open, found.other_settings, found.unpriced) == (1, 1, 0)
    refused = found.requests[1]
    assert (refused.ran, refused.expected_output_tokens, refused.end.wait_s) == (None, 256, None)
    assert asked([refused], case()).guessed_outputs == 1


def test_what_a_shadow_decided_is_not_what_happened():
    shadow = msgspec.structs.replace(admission(prompt_tokens=7), shadow="small")
    found = read(shadow, msgspec.structs.replace(settlement(), shadow="small"), admission(), settlement(), reply())
    (one,) = found.requests
    assert (one.request.prompt_tokens, one.end.cost_units) == (100, 7.5)


def test_a_model_that_the_settings_do_not_have_is_left_out_and_counted():
    found = read(admission(), admission("gone", model="gone"), reply(), reply("gone"))
    assert ([one.request.id for one in found.requests], found.unpriced, found.open) == (["r1"], 1, 0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("gpu.preset=b300", "b300 is not known; known: a100-8b"), ("gpu.window_requests=4096", "4096")],
)
def test_an_engine_that_cannot_be_simulated_is_refused(text, complaint):
    gpu = overrides.changed(GpuSettings(), overrides.parsed([text]))
    with pytest.raises(ConfigError, match=complaint):
        what_if.case(Load([], 0, 1, 0), (SETTINGS, gpu, AutoscalerSettings()), "default", 1)


def test_figures_name_outcomes_times_waits_cost_and_goodput():
    late = replace(UNSEEN, ttft_s=9.0, wait_s=8.0, tenant="u", priority=Priority.LOW)
    shed = replace(UNSEEN, outcome=Outcome.EXPIRED, wait_s=None, ttft_s=None, e2e_s=None, cost_units=0.0)
    found = figures.of([UNSEEN, late, shed], Slo())
    assert found.outcomes == {"completed": 2, "expired": 1}
    assert found.ttft_s["short"] == {"p50": 0.2, "p99": 9.0}
    assert found.wait_s["low"] == {"p50": 8.0, "p99": 8.0}
    assert found.cost_units == {"t": 5.0, "u": 5.0}
    assert found.goodput_ratio == 0.3333
    flat = figures.flat(found)
    assert figures.differences(flat, {**flat, "outcomes.failed": 2})["outcomes.failed"] == 2
    assert figures.differences(flat, flat)["wait_s.high.p50"] is None


def test_an_empty_log_says_so():
    with pytest.raises(load.Empty, match="no request of the pool default that ended"):
        load.read(Books(SETTINGS, AutoscalerSettings()), "default", 0.0, [])
