import json
import re
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from typer.testing import CliRunner

from rampmeter import cli, simulate_command, workload
from rampmeter.simulation import figures, lanes, report, scenario, series, workloads
from rampmeter.simulation.baselines import Slo
from rampmeter.simulation.figures import _covered, _covers, jain
from rampmeter.simulation.jobs import Fate, Job
from rampmeter.simulation.scaling import Scaling
from rampmeter.simulation.scenario import POLICIES, Fleet
from rampmeter.workload import Row
from streams.policy.degrade import Limit
from topics.errors import ConfigError
from topics.records import Length, Priority

FLEET = Fleet(engines=2)


def simulated(rows, policy, load_ratio, fleet=FLEET, saturation=None):
    asked = scenario.priced(rows, fleet.settings)
    return scenario.run(asked, policy, load_ratio, fleet, saturation or scenario.saturation_per_s(asked, fleet))


@pytest.fixture(scope="module")
def minute():
    """About 60 s of two engines at saturation, in bursts."""
    return workload.generate_count(800, seed=3)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_once_and_never_before_it_came(minute, policy):
    jobs = simulated(minute, policy, 1.1).jobs

    assert {job.fate for job in jobs} <= {Fate.COMPLETED, Fate.SHED}
    done = [job for job in jobs if job.fate is Fate.COMPLETED]
    assert all(job.arrived_s <= job.started_s < job.first_token_s <= job.finished_s for job in done)
    assert all(job.started_s < 0 for job in jobs if job.fate is Fate.SHED)
    assert len(jobs) == (len(minute) if policy != "limit" else sum(j.asked.length is Length.SHORT for j in jobs))


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_placement(minute):
    def bytes_of(seed):
        return msgspec.json.encode(simulated(minute, "ours", 1.1, Fleet(engines=2, seed=seed)).figures())

    assert bytes_of(1) == bytes_of(1)
    assert bytes_of(1) != bytes_of(2)


def test_a_minute_of_overload_shows_what_order_gains_and_that_no_work_is_lost(minute):
    found = {
        policy: simulated(minute, policy, 1.3).figures() for policy in ("fifo", "ours", "ours-unshed", "fifo-shed")
    }
    fifo, ours, unshed = found["fifo"], found["ours"], found["ours-unshed"]

    assert ours.ttft_s["short"]["p99"] * 4 < fifo.ttft_s["short"]["p99"]
    assert ours.e2e_s["short"]["p99"] * 1.15 < fifo.e2e_s["short"]["p99"]
    assert ours.goodput_ratio > 1.5 * fifo.goodput_ratio
    assert ours.goodput_ratio > found["fifo-shed"].goodput_ratio
    assert unshed.shed_ratio == 0
    assert unshed.tokens_per_s == pytest.approx(fifo.tokens_per_s, rel=0.05)


@pytest.mark.parametrize("policy", ["ours", "fifo-shed"])
def test_who_refuses_begins_nothing_that_leaves_no_time_for_the_prompt(minute, policy):
    jobs = simulated(minute, policy, 5.0).jobs
    begun = [job for job in jobs if job.fate is Fate.COMPLETED]
    assert all(job.started_s - job.arrived_s <= 0.9 * FLEET.slo.of(job.asked.length) for job in begun)
    assert any(job.fate is Fate.SHED for job in jobs)


def test_saturation_does_not_depend_on_when_requests_came(minute):
    late = [replace(row, arrival_s=row.arrival_s * 10) for row in minute]
    one, other = (scenario.saturation_per_s(scenario.priced(rows, FLEET.settings), FLEET) for rows in (minute, late))
    assert one == other


def test_a_class_follows_from_what_is_declared_and_never_from_the_answer():
    rows = workload.generate_count(300)
    longer = [replace(row, output_tokens=1000 - row.output_tokens // 10) for row in rows]
    declared = workload.mean_outputs(rows)

    def classes(some):
        settings = FLEET.settings
        pricing = scenario.Pricing(settings.models[scenario.MODEL], settings.streams, declared)
        return [one.length for one in pricing.price(some)]

    assert classes(rows) == classes(longer)
    assert set(classes(rows)) == set(Length)


def test_high_work_waits_less_than_low_work():
    rows = [
        Row(number / 100, 1000, 100, "a", priority=(Priority.HIGH, Priority.LOW)[number % 2]) for number in range(600)
    ]
    jobs = simulated(rows, "ours-unshed", 1.0, saturation=100.0).jobs

    waits = {
        priority: max(j.started_s - j.arrived_s for j in jobs if j.asked.work.request.priority is priority)
        for priority in (Priority.HIGH, Priority.LOW)
    }
    assert waits[Priority.HIGH] * 1.5 < waits[Priority.LOW]


def test_the_partitions_of_a_lane_are_dealt_out_by_range():
    assert lanes.ranges(4, 3) == [range(2), range(2, 3), range(3, 4)]
    assert lanes.ranges(4, 4) == [range(n, n + 1) for n in range(4)]


def test_a_shifted_trace_holds_the_same_requests_from_another_moment_on():
    rows = [Row(float(n), n + 1, 1, "a") for n in range(11)]
    shifted = scenario.shifted(rows, 0.35)
    assert [row.input_tokens for row in shifted] == [5, 6, 7, 8, 9, 10, 11, 1, 2, 3, 4]
    assert [row.arrival_s for row in shifted] == sorted(row.arrival_s for row in shifted)


def job(tenant, arrived_s, started_s):
    row = Row(arrived_s, 1000, 100, "a", tenant)
    made = Job(scenario.priced([row], FLEET.settings)[0])
    made.started_s, made.first_token_s, made.finished_s, made.fate = (
        started_s,
        started_s + 1,
        started_s + 2,
        Fate.COMPLETED,
    )
    return made


def test_jain_counts_tenants_that_had_work_waiting_all_through_a_window():
    even = [job(tenant, 0.0, at_s) for tenant in "ab" for at_s in (10.0, 30.0, 70.0)]
    uneven = [*even, *(job("a", 0.0, at_s) for at_s in (11.0, 12.0, 13.0))]
    idle = [job("a", 0.0, 70.0), job("b", 5.0, 70.0)]

    assert jain(even) == 1.0
    assert jain(uneven) < 0.9
    assert jain(idle) is None
    assert jain([job("a", 0.0, 1.0)]) == 1.0


def test_waits_that_overlap_cover_a_window_together():
    assert _covered([(5, 9), (0, 6), (20, 90)]) == [(0, 9), (20, 90)]
    assert not _covers([(0, 59), (61, 200)], 0)
    assert _covers([(0, 59), (60, 200)], 1)


def test_goodput_counts_what_was_shed_as_missed():
    good, late, shed = job("a", 0.0, 0.5), job("a", 0.0, 50.0), job("a", 0.0, 0.5)
    shed.fate = Fate.SHED
    found = figures.of_run(
        [good, late, shed],
        Slo(),
        policy="ours",
        load=1.0,
        saturation_per_s=1.0,
        engine_s=1.0,
        replicas={"min": 1, "max": 1},
    )
    assert (found.goodput_ratio, found.shed_ratio) == (0.3333, 0.3333)
    assert found.tokens_per_s == round(2 * 1100 / 52, 1)


def test_a_backlog_is_what_came_and_did_not_begin():
    jobs = [job("a", 0.0, 4.0), job("a", 1.0, 4.0), job("a", 5.0, 6.0)]
    length = jobs[0].asked.length
    assert series.backlog(jobs, length, 1.0)[:7] == [(0, 1), (1, 2), (2, 2), (3, 2), (4, 0), (5, 1), (6, 0)]


def test_the_report_is_one_page_without_scripts_and_shows_both_runs(minute):
    page = report.render([simulated(minute, policy, 1.1) for policy in ("ours", "fifo")])
    assert page.count("<svg") == 6
    assert page.count("<polyline") == 12
    assert "<script" not in page
    assert not re.search(r"[,>](nan|inf)", page)


def test_a_fleet_follows_the_load_and_holds_fewer_engines_than_its_peak_needs():
    rates = [1.0] * 6 + [20.0] * 6 + [1.0] * 12
    rows = workloads.by_rate(workload.generate_count(500), rates, 10.0, seed=1)
    asked = scenario.priced(rows, FLEET.settings)
    fleet = Fleet(engines=1, scaling=Scaling(1, 4, cold_s=5.0))
    run = scenario.run(asked, "ours-unshed", 1.0, fleet, len(rows) / rows[-1].arrival_s)
    counts = [count for _, count in run.held]

    assert {job.fate for job in run.jobs} == {Fate.COMPLETED}
    assert counts[0] == 1
    assert max(counts) > 2
    assert counts[-1] < max(counts)
    assert run.figures().engine_s < 0.8 * max(counts) * run.figures().makespan_s
    assert min(at_s for at_s, count in run.held if count > 1) > 60.0
    line = run.replicas_over_time
    assert all(one[0] == other[0] or (one[0] < other[0] and one[1] == other[1]) for one, other in pairwise(line))


def test_a_tenant_over_its_budget_waits_or_is_refused_and_the_others_do_not_feel_it():
    rows = [Row(n / 20, 500, 50, "a", "loud" if n % 10 else "quiet") for n in range(1200)]
    budget = Limit(refill_units_per_s=200.0, cap_units=2000.0)
    run = simulated(rows, "ours-unshed", 1.0, Fleet(engines=1, tenant_budget=budget), saturation=20.0)

    def of(tenant):
        return [job for job in run.jobs if job.asked.work.request.tenant == tenant]

    assert all(job.fate is Fate.COMPLETED and job.started_s - job.arrived_s < 2.0 for job in of("quiet"))
    assert sum(job.ask.cost_units for job in of("loud") if job.fate is Fate.COMPLETED) < 200.0 * 100
    assert any(job.fate is Fate.SHED for job in of("loud"))


def test_an_engine_that_nobody_knows_is_named_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"b300 is not known; known: a100-8b"):
        simulate_command.fleet("b300", 1, 1)


def test_the_command_ends_with_one_line_of_json(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{n / 10},{500 + n},20\n" for n in range(200)))
    arguments = ["simulate", str(trace), "--load", "0.9", "--engines", "1", "--policy", "ours", "--json"]

    shown = CliRunner().invoke(cli.app, arguments)

    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout.splitlines()[-1])
    assert {"ttft_s", "e2e_s", "goodput_ratio", "tokens_per_s", "shed_ratio", "jain", "max_wait_s"} <= found.keys()
    assert set(found["ttft_s"]) == {"short", "long"}
    assert set(found["ttft_s"]["short"]) == {"p50", "p99"}


@pytest.mark.parametrize("rule", ["keda-lag", "hpa-queue"])
def test_others_size_the_fleet_by_messages_every_fifteen_seconds_and_keep_it_for_five_minutes(rule):
    rates = [2.0] * 6 + [20.0] * 6 + [2.0] * 40
    rows = workloads.by_rate(workload.generate_count(500), rates, 10.0, seed=1)
    asked = scenario.priced(rows, FLEET.settings)
    fleet = Fleet(engines=1, scaling=Scaling(1, 4, cold_s=5.0, rule=rule))
    run = scenario.run(asked, "ours-unshed", 1.0, fleet, len(rows) / rows[-1].arrival_s)
    grown = [at_s for (_, before), (at_s, count) in pairwise(run.orders) if count > before]
    shrunk = [at_s for (_, before), (at_s, count) in pairwise(run.orders) if count < before]
    assert {job.fate for job in run.jobs} == {Fate.COMPLETED}
    assert all(at_s % 15.0 == 0 for at_s in grown)
    assert max(count for _, count in run.orders) == 4
    assert min(shrunk) >= max(grown) + 300.0
