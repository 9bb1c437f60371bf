import pytest

from rampmeter import control
from rampmeter.control import Change, OrderRefused
from streams.policy import control as policy
from streams.policy.control import Event, State
from streams.settings import Bucket, StreamsSettings
from tests.support.clock import FakeClock
from topics.orders import key_of
from topics.records import ControlAction, ControlKind
from topics.settings import Settings

CLOCK = FakeClock()


def order(action, kind, name, **fields):
    return control.make_order(Settings(), CLOCK, action, (kind, name), Change(**fields))


def limits(*orders, **streams):
    events = [Event(key_of(one), one, one.at_s) for one in orders]
    state, _ = policy.fold(State(), events, 0.0)
    rows = control.limits(StreamsSettings(streams=streams), state)
    return {(row.level, row.name): row for row in rows}


def test_an_order_knows_who_when_and_its_own_id():
    one, two = (order(ControlAction.CANCEL, ControlKind.REQUEST, "r1", tenant="acme") for _ in range(2))
    assert one.id != two.id
    assert (one.at_s, one.tenant) == (CLOCK.wall_s(), "acme")
    assert "@" in one.by


@pytest.mark.parametrize(
    ("target", "change", "complaint"),
    [
        ((ControlAction.PAUSE, ControlKind.POOL, "elsewhere"), {}, "no pool 'elsewhere'"),
        ((ControlAction.PAUSE, ControlKind.CLASS, "urgent"), {}, "no class 'urgent'"),
        ((ControlAction.LIMITS, ControlKind.GLOBAL, "world"), {}, "no global 'world'"),
        ((ControlAction.CANCEL, ControlKind.REQUEST, "a b"), {}, "no request 'a b'"),
        ((ControlAction.CANCEL, ControlKind.REQUEST, "r1"), {"tenant": "a b"}, "no tenant 'a b'"),
        ((ControlAction.LIMITS, ControlKind.TENANT, "acme"), {"burst_s": 0.0}, "above zero"),
    ],
)
def test_an_order_that_no_worker_would_follow_is_refused_in_words(target, change, complaint):
    with pytest.raises(OrderRefused, match=complaint):
        order(*target, **change)


def test_limits_are_those_of_the_settings_where_nobody_ordered_others():
    rows = limits(tenant_budgets={"acme": Bucket(refill_units_per_s=5.0, burst_s=2.0)})
    assert set(rows) == {
        ("global", "all"), ("pool", "default"), ("pool", "cpu"), ("class", "high"), ("class", "medium"),
        ("class", "low"), ("tenant", "*"), ("tenant", "acme"),
    }  # fmt: skip
    acme = rows["tenant", "acme"]
    assert (acme.refill_units_per_s, acme.burst_s, acme.cap_units, acme.order) == (5.0, 2.0, 10.0, None)


def test_a_changed_limit_shows_its_figures_and_its_order_and_the_rest_stays():
    changed = order(ControlAction.LIMITS, ControlKind.TENANT, "new", refill_units_per_s=3.0)
    row = limits(changed)["tenant", "new"]
    assert (row.refill_units_per_s, row.burst_s, row.order) == (3.0, 60.0, changed)


def test_a_reset_budget_is_that_of_the_settings_again():
    orders = [
        order(ControlAction.LIMITS, ControlKind.GLOBAL, "all", burst_s=1.0),
        order(ControlAction.LIMITS, ControlKind.GLOBAL, "all"),
    ]
    assert limits(*orders)["global", "all"].order is None
    assert limits(*orders) == limits()


def test_a_paused_tenant_is_listed_although_the_settings_do_not_name_it():
    pause = order(ControlAction.PAUSE, ControlKind.TENANT, "loud")
    row = limits(pause)["tenant", "loud"]
    assert (row.pause, row.order) == (pause, None)


def test_a_resumed_tenant_that_nothing_else_names_is_not_listed():
    orders = [order(action, ControlKind.TENANT, "loud") for action in (ControlAction.PAUSE, ControlAction.RESUME)]
    assert limits(*orders) == limits()
