import pytest

from streams.policy import control
from streams.policy.control import Event, State
from topics.orders import key_of
from topics.records import Control, ControlAction, ControlKind, Priority

NOW_S = 1_700_000_000.0
WINDOW_S = 600.0
CANCEL, PAUSE, RESUME, LIMITS, DRAIN = ControlAction
REQUEST, TENANT, POOL, CLASS, GLOBAL, CONSUMER = ControlKind


def order(action, kind, name, order_id="o1", **fields):
    return Control(id=order_id, action=action, kind=kind, name=name, **{"at_s": NOW_S, "by": "ann", **fields})


def event(made, at_s=NOW_S, **fields):
    return Event(key_of(made), made, at_s, **fields)


def fold(*events, state=None, now_s=NOW_S):
    return control.fold(state or State(), events, now_s - WINDOW_S)


def is_cancelled(state, request_id="r1", tenant="acme", now_s=NOW_S):
    return state.is_cancelled(request_id, tenant, now_s - WINDOW_S)


def test_a_cancelled_id_is_cancelled_and_no_other():
    state, _ = fold(event(order(CANCEL, REQUEST, "r1")))
    assert is_cancelled(state)
    assert not is_cancelled(state, "r2")


def test_a_cancellation_that_names_a_tenant_spares_the_request_of_another():
    state, _ = fold(event(order(CANCEL, REQUEST, "r1", tenant="acme")))
    assert is_cancelled(state)
    assert not is_cancelled(state, tenant="evil")


def test_a_stranger_who_cancels_the_same_id_later_does_not_undo_the_cancellation():
    state, _ = fold(
        event(order(CANCEL, REQUEST, "r1", tenant="acme")),
        event(order(CANCEL, REQUEST, "r1", "o2", tenant="evil")),
    )
    assert is_cancelled(state)


def test_a_cancellation_is_forgotten_after_the_dedupe_window():
    state, _ = fold(event(order(CANCEL, REQUEST, "r1")))
    assert is_cancelled(state, now_s=NOW_S + WINDOW_S)
    assert not is_cancelled(state, now_s=NOW_S + WINDOW_S + 1)
    state, _ = fold(state=state, now_s=NOW_S + WINDOW_S + 1)
    assert state == State()


def test_a_cancellation_read_after_its_window_does_nothing():
    state, fates = fold(event(order(CANCEL, REQUEST, "r1"), at_s=NOW_S - WINDOW_S - 1))
    assert (state, [fate for _, fate in fates]) == (State(), ["stale"])


def test_cancelled_ids_are_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(control, "MAX_CANCELLED", 3)
    state, _ = fold(*(event(order(CANCEL, REQUEST, f"r{n}", f"o{n}")) for n in (0, 1, 2)))
    state, _ = fold(event(order(CANCEL, REQUEST, "r0", "o3")), event(order(CANCEL, REQUEST, "r3", "o4")), state=state)
    assert {name for name, _ in state.cancelled} == {"r0", "r2", "r3"}


@pytest.mark.parametrize(
    ("kind", "name", "work"),
    [(TENANT, "acme", ("acme", "x", Priority.LOW)), (POOL, "cpu", ("x", "cpu", Priority.LOW)),
     (CLASS, "high", ("x", "x", Priority.HIGH))],
)  # fmt: skip
def test_a_pause_stops_its_work_only_and_a_resume_ends_it(kind, name, work):
    state, _ = fold(event(order(PAUSE, kind, name)))
    assert state.paused_reason(*work) == f"the {kind} {name} is paused"
    assert state.paused_reason("other", "other", Priority.MEDIUM) is None
    state, _ = fold(event(order(RESUME, kind, name, "o2")), state=state)
    assert state.paused_reason(*work) is None


def test_a_tenant_named_like_a_pool_is_not_paused_with_it():
    state, _ = fold(event(order(PAUSE, POOL, "cpu")))
    assert state.paused_reason("cpu", "default", Priority.HIGH) is None


def test_the_last_order_of_a_key_counts():
    state, _ = fold(
        event(order(PAUSE, TENANT, "acme", "o1")),
        event(order(RESUME, TENANT, "acme", "o2")),
        event(order(PAUSE, TENANT, "acme", "o3")),
    )
    assert state.paused == {"paused:tenant:acme"}


def test_a_pause_and_new_limits_of_one_tenant_hold_side_by_side():
    made = [order(LIMITS, TENANT, "acme", "o1", burst_s=1.0), order(PAUSE, TENANT, "acme", "o2")]
    assert len({key_of(one) for one in made}) == 2
    state, _ = fold(*map(event, made))
    assert set(state.orders.values()) == set(made)


def test_the_same_order_twice_is_applied_once():
    for made in (order(CANCEL, REQUEST, "r1"), order(PAUSE, TENANT, "acme"), order(LIMITS, GLOBAL, "all", burst_s=1.0)):
        state, fates = fold(event(made), event(made))
        assert [fate for _, fate in fates] == ["applied", "repeated"]
        assert [fate for _, fate in fold(event(made), state=state)[1]] == ["repeated"]


def test_a_tombstone_ends_a_pause():
    state, fates = fold(event(order(PAUSE, TENANT, "acme")), Event("paused:tenant:acme", None, NOW_S))
    assert state == State()
    assert [fate for _, fate in fates] == ["applied", "applied"]


def test_orders_about_too_many_names_are_ignored_and_the_others_still_change(monkeypatch):
    monkeypatch.setattr(control, "MAX_ORDERS", 2)
    state, fates = fold(*(event(order(PAUSE, TENANT, f"t{n}")) for n in range(3)))
    assert [fate for _, fate in fates] == ["applied", "applied", "too_many"]
    state, _ = fold(event(order(RESUME, TENANT, "t0", "o2")), state=state)
    assert state.paused == {"paused:tenant:t1"}


def test_an_order_to_drain_is_written_down_and_remembered_by_nobody():
    drain = event(order(DRAIN, CONSUMER, "gpu-7"))
    state, fates = fold(drain)
    assert (state, fates) == (State(), [(drain, "applied")])
