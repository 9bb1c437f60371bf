import msgspec
import pytest

from autoscaler.admissions import Before
from rampmeter.console.budgets import Level, level_of
from rampmeter.console.fleet import lines_of, served_by
from rampmeter.console.page import drain_s, page
from rampmeter.console.settings import Console
from rampmeter.console.sources import Decided, Lanes, Orders, Views
from rampmeter.console.tally import Scaling, Told
from rampmeter.console.watch import Seen, now
from rampmeter.control import Limit
from rampmeter.lag import Row
from rampmeter.spending import Spend
from topics.records import Control, ControlAction, ControlKind
from topics.telemetry import Telemetry

NOW_S = 1000.0
NEVER = {name: Seen(name) for name in ("lanes", "consumers", "decisions", "waits", "orders", "budgets")}


def good(name, value, problem=None):
    return Seen(name, value, NOW_S - 1, problem)


def views(**known):
    return Views(**{**NEVER, **known})


def report(consumer="c1", **fields):
    return Telemetry(**{"consumer": consumer, "pool": "default", "state": "ready", "at_s": NOW_S, **fields})


def lanes(*rows):
    return good("lanes", Lanes([Row("default", *row) for row in rows], ()))


def decided(spends=None, held=None):
    before = {} if held is None else {"default": Before((0.0, held, 0.0, 0.0))}
    return good("decisions", Decided(Told(spends or {}, ()), before))


def limit(level, name, pause=None):
    order = None
    if pause:
        order = Control(id="o1", action=ControlAction.PAUSE, kind=ControlKind(level), name=name, at_s=0.0, by=pause)
    return Limit(level, name, 10.0, 6.0, 60.0, paced=False, pause=order)


def shown(known, **own):
    return page(known, ["default"], Console(**own), NOW_S)


def test_before_anything_was_read_all_is_unknown_and_nothing_is_zero():
    made = shown(views())
    (pool,) = made.pools
    figures = (pool.lanes, pool.records, pool.oldest_s, pool.held_units, pool.drain_s, pool.serving, pool.units_per_s)
    assert figures == (None,) * 7
    assert (made.consumers, made.scaling) == (None, None)
    assert [source.problem for source in made.sources] == ["not read yet"] * 6


def test_a_pool_sums_its_lanes_and_what_waits_before_them():
    known = views(
        lanes=lanes(("high", "short", 3, 30.0, 2.0), ("low", "long", 1, 70.0, 9.0)),
        consumers=good("consumers", [report(capacity_units_per_s=10.0), report("c2", capacity_units_per_s=10.0)]),
        decisions=decided(held=100.0),
    )
    (pool,) = shown(known).pools
    assert (pool.records, pool.oldest_s, pool.serving, pool.units_per_s) == (4, 9.0, 2, 20.0)
    assert [lane.drain_s for lane in pool.lanes] == [1.5, 3.5]
    assert (pool.held_drain_s, pool.drain_s) == (5.0, 10.0)


@pytest.mark.parametrize(
    ("units", "rate", "expected"),
    [(0.0, None, 0.0), (5.0, None, None), (5.0, 0.0, None), (None, 1.0, None), (5, 2, 2.5)],
)
def test_the_time_to_drain_is_unknown_where_the_rate_is(units, rate, expected):
    assert drain_s(units, rate) == expected


def test_those_that_did_not_measure_serve_like_the_others_and_those_in_trouble_not_at_all():
    reports = [
        report("measured", capacity_units_per_s=30.0),
        report("new"),
        report("closed", intake="closed by memory", capacity_units_per_s=99.0),
        report("silent", at_s=NOW_S - 20, capacity_units_per_s=99.0),
        report("elsewhere", pool="cpu", capacity_units_per_s=99.0),
    ]
    assert served_by(reports, "default", NOW_S) == (2, 60.0)
    assert served_by([report()], "default", NOW_S) == (1, None)
    assert served_by([], "default", NOW_S) == (0, None)


def test_consumers_in_trouble_come_first_and_what_they_do_not_tell_is_unknown():
    reports = [
        report("ok", free_kv_tokens=25, total_kv_tokens=100, gpu_temperature_c=61.0),
        report("leaving", state="draining"),
        report("full", intake="closed by memory"),
        report("dead", at_s=NOW_S - 30),
    ]
    lines = lines_of(reports, NOW_S)
    assert [(line.consumer, line.state) for line in lines] == [
        ("dead", "silent"), ("full", "closed"), ("leaving", "draining"), ("ok", "ready"),
    ]  # fmt: skip
    assert (lines[-1].kv_ratio, lines[-1].temperature_c, lines[-1].memory_ratio) == (0.75, 61.0, None)
    assert lines[0].temperature_c is None


def test_consumers_that_cannot_be_heard_are_not_called_silent():
    reports = [report(at_s=NOW_S - 61, capacity_units_per_s=5.0)]
    known = views(consumers=Seen("consumers", reports, NOW_S - 60, "telemetry: timed out"))
    made = shown(known)
    assert (made.consumers[0].state, made.consumers[0].silent_s, made.pools[0].serving) == ("ready", 1.0, 1)


def test_where_consumers_measured_nothing_the_autoscalers_rate_counts():
    one = Scaling(NOW_S, "default", "hold", "steady", "", 2, 2, {"replica_units_per_s": 40.0})
    told = good("decisions", Decided(Told({}, (one,)), {}))
    known = views(consumers=good("consumers", [report(), report("c2")]), decisions=told)
    (pool,) = shown(known).pools
    assert (pool.units_per_s, pool.is_measured) == (80.0, False)


def test_more_consumers_than_are_shown_are_counted():
    known = views(consumers=good("consumers", [report(f"c{n}") for n in range(7)]))
    made = shown(known, consumers=3)
    assert (len(made.consumers), made.consumers_left_out) == (3, 4)


def test_the_largest_tenants_have_a_line_each_and_the_rest_one():
    spends = {f"t{n}": Spend(asked_units=60.0 * n, requests=n, rejected=1) for n in range(1, 8)}
    known = views(
        decisions=decided(spends),
        orders=good("orders", Orders([limit("global", "all"), limit("tenant", "*"), limit("tenant", "t7", "me@x")])),
        budgets=good("budgets", {("tenant", "t7"): Level(-5.0, 60.0)}),
    )
    made = shown(known, tenants=3)
    assert [line.name for line in made.tenants] == ["t7", "t6", "t5", "(other)"]
    loudest, other = made.tenants[0], made.tenants[-1]
    assert (loudest.pause, loudest.units, loudest.lately.asked_units_per_s) == ("me@x", -5.0, 7.0)
    assert (made.tenants[1].refill_units_per_s, made.tenants[1].units, made.tenants[1].pause) == (10.0, None, None)
    assert (other.lately.requests, other.lately.rejected) == (10, 4)
    assert [line.level for line in made.budgets] == ["global"]


def test_a_paused_tenant_is_shown_though_it_asks_for_nothing():
    known = views(
        decisions=decided(), orders=good("orders", Orders([limit("tenant", "a"), limit("tenant", "z", "me")]))
    )
    assert [line.name for line in shown(known, tenants=1).tenants] == ["z"]


def test_the_last_good_reading_stays_beside_what_is_wrong_now():
    known = views(lanes=Seen("lanes", Lanes([], ()), NOW_S - 60, "lag of pool default: timed out"))
    made = shown(known)
    assert (made.sources[0].good_s, made.sources[0].problem) == (NOW_S - 60, "lag of pool default: timed out")


def test_a_source_whose_thread_stands_still_is_not_taken_for_live():
    seen = good("lanes", 1)
    assert now(seen, NOW_S + 5, 10.0) is seen
    assert now(seen, NOW_S + 29, 10.0).problem == "no reading for 30 s"
    assert now(Seen("lanes", 1, NOW_S, "away"), NOW_S + 99, 10.0).problem == "away"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"level": b"10", "as_of": b"990", "refill": b"2", "cap": b"100"}, Level(30.0, 100.0)),
        ({"level": b"95", "as_of": b"990", "refill": b"2", "cap": b"100"}, Level(100.0, 100.0)),
        ({"level": b"-50", "as_of": b"1001", "refill": b"2", "cap": b"100"}, Level(-50.0, 100.0)),
        (dict.fromkeys(("level", "as_of", "refill", "cap")), None),
        ({"level": b"x", "as_of": b"990", "refill": b"2", "cap": b"100"}, None),
    ],
)
def test_a_bucket_holds_what_was_in_it_and_what_flowed_in_since(stored, expected):
    assert level_of(stored, NOW_S) == expected


def test_a_page_is_json():
    assert msgspec.json.decode(msgspec.json.encode(shown(views())))["now_s"] == NOW_S
