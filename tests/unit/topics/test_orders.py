import pytest

from topics import orders
from topics.records import Control, ControlAction, ControlKind

CANCEL, PAUSE, RESUME, LIMITS, DRAIN = ControlAction
REQUEST, TENANT, POOL, CLASS, GLOBAL, CONSUMER = ControlKind


def order(action, kind, name, **fields):
    return Control(id="o1", action=action, kind=kind, name=name, at_s=1.7e9, by="ann", **fields)


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (order(CANCEL, REQUEST, "r1"), None),
        (order(LIMITS, GLOBAL, "all", refill_units_per_s=1.0), None),
        (order(LIMITS, CLASS, "low"), None),
        (order(PAUSE, POOL, "default"), None),
        (order(DRAIN, CONSUMER, "gpu-7-1-ab12cd"), None),
        (order(CANCEL, TENANT, "acme"), "wrong_kind"),
        (order(PAUSE, REQUEST, "r1"), "wrong_kind"),
        (order(PAUSE, GLOBAL, "all"), "wrong_kind"),
        (order(LIMITS, REQUEST, "r1"), "wrong_kind"),
        (order(DRAIN, POOL, "default"), "wrong_kind"),
        (order(PAUSE, CONSUMER, "gpu-7-1-ab12cd"), "wrong_kind"),
        (order(PAUSE, POOL, "elsewhere"), "unknown_name"),
        (order(PAUSE, CLASS, "urgent"), "unknown_name"),
        (order(LIMITS, GLOBAL, "world"), "unknown_name"),
        (order(CANCEL, REQUEST, ""), "unknown_name"),
        (order(CANCEL, REQUEST, "two words"), "unknown_name"),
        (order(LIMITS, TENANT, "acme", refill_units_per_s=0.0), "bad_limit"),
        (order(LIMITS, TENANT, "acme", burst_s=-1.0), "bad_limit"),
        (order(LIMITS, TENANT, "acme", burst_s=float("inf")), "bad_limit"),
    ],
)
def test_an_order_that_means_nothing_is_told_by_a_word(made, wrong):
    assert orders.fault(made, orders.key_of(made), {"default"}) == wrong


def test_an_order_under_the_key_of_another_is_refused():
    assert orders.fault(order(PAUSE, TENANT, "acme"), "limits:tenant:acme", ()) == "wrong_key"
