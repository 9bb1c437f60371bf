"""The report, from the very records that workers write."""

import pytest

from rampmeter import shadow_diff
from rampmeter.stances import Stances
from streams.journal import Journal
from streams.ledger_wire import Settled
from streams.policy import admission
from streams.policy.admission import Admit, Defer, Hold
from streams.policy.verification import Refusal
from streams.settings import Streams, StreamsSettings
from tests.support.builders import WALL_S, request, usage, work
from tests.support.clock import FakeClock
from topics import codec
from topics.outcomes import Outcome, Reason
from topics.records import Length, Priority, Reply
from topics.timing import Waits

NO_BUDGET = admission.Reject(Outcome.REJECTED_BUDGET, Reason.BUDGET_TENANT, "spent")


class Log:
    """Both sides' records, taken in as they are written."""

    def __init__(self):
        self.clock = FakeClock(WALL_S)
        self.stances = Stances("small")
        self.journals = {
            side: Journal(StreamsSettings(streams=Streams(shadow=side)), self.clock, "w")
            for side in (None, "small", "other")
        }

    def decided(self, side, verdict, request_id="r1", after_s=0.0, priced=None, again=False, **asked):
        made = work({"id": request_id, **asked}, {"coefficient": 1.0, **(priced or {})})
        self.clock.advance(after_s)
        self._take(self.journals[side].admission(made, verdict, {"again": "reserved"} if again else {}))
        self.clock.advance(-after_s)
        return self

    def both(self, verdict, request_id, **fields):
        return self.decided(None, verdict, request_id, **fields).decided("small", verdict, request_id, **fields)

    def served(self, request_id="r1", units=30.0, lane_s=1.0, **fields):
        self._take(self.journals[None].settlement(usage(id=request_id, **fields), units, Settled("settled", 0.0)))
        waits = Waits(queued_s=0.0, admitted_s=0.25, lane_s=lane_s)
        self.stances.reply(Reply(id=request_id, outcome=Outcome.COMPLETED, waits=waits))
        return self

    def refused(self, side, request_id):
        asked = request()
        made = Refusal(request_id, asked.reply, asked.origin, Outcome.REJECTED_INVALID, Reason.BAD_HEADER, "", WALL_S)
        self._take(self.journals[side].refusal(made))
        return self

    def _take(self, outgoing):
        self.stances.decision(codec.decode_decision(outgoing.value))

    def report(self):
        return shadow_diff.report(self.stances)


LONG = {"length": Length.LONG}
CHANGES = {
    "nothing": (Log().both(Admit(), "r1"), []),
    "the outcome": (Log().decided(None, Admit()).decided("small", NO_BUDGET), ["outcome"]),
    "the reason": (
        Log().decided(None, NO_BUDGET).decided("small", admission.DEADLINE_UNREACHABLE), ["outcome"]
    ),
    "the class and so the lane": (
        Log().decided(None, Admit()).decided("small", Admit(), priority=Priority.LOW), ["class", "lane"]
    ),
    "the lane": (Log().decided(None, Admit()).decided("small", Admit(), priced=LONG), ["lane"]),
    "the price": (Log().decided(None, Admit()).decided("small", Admit(), priced={"cost_units": 101.0}), ["price"]),
    "what cannot be verified by one": (Log().decided(None, Admit()).refused("small", "r1"), ["outcome"]),
    "what waited in between": (
        Log().decided(None, Admit()).decided("small", Hold(1.0, "fair_share")).decided("small", Admit()), []
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_request_differs_in(case):
    log, what = CHANGES[case]
    found = log.report()
    assert found.compared == 1
    assert [change.what for change in found.changes] == ([what] if what else [])
    assert found.total.changed == {kind: int(kind in what) for kind in shadow_diff.KINDS}


def test_only_what_both_decided_for_good_is_compared_and_the_rest_is_counted():
    log = Log().both(Admit(), "both").decided(None, Admit(), "real").decided("small", Admit(), "shadow")
    log.decided(None, Admit(), "waits").decided("small", Defer(5, "budget_tenant"), "waits")
    log.decided("other", NO_BUDGET, "both").decided("other", NO_BUDGET, "others")
    found = log.report()
    assert (found.compared, found.only_real, found.only_shadow, found.waiting) == (1, 1, 1, 1)
    assert found.changed_requests == 0


def test_the_first_final_word_counts_whatever_a_restart_or_a_second_asker_adds():
    log = Log().decided(None, Admit()).decided(None, NO_BUDGET).decided("small", Admit(), again=True)
    log.decided("small", NO_BUDGET)
    assert log.report().changed_requests == 0


def test_waits_before_a_lane_are_those_that_each_side_measured():
    log = Log().decided(None, Admit(), after_s=0.5).decided("small", Admit(), after_s=3.0).served()
    part = log.report().total
    assert (part.real.queued_s["p50"], part.shadow.queued_s["p50"]) == (0.5, 3.0)


def test_on_the_same_lane_the_shadows_wait_is_the_real_one_and_on_another_the_median_there():
    log = Log()
    for number, lane_s in enumerate((1.0, 2.0, 9.0)):
        log.both(Admit(), f"long-{number}", priced=LONG).served(f"long-{number}", lane_s=lane_s)
    log.decided(None, Admit(), "moved", tenant="m").decided("small", Admit(), "moved", tenant="m", priced=LONG)
    found = log.served("moved", lane_s=0.0).report()
    assert (found.tenants["acme"].real.lane_s["p99"], found.tenants["acme"].shadow.lane_s["p99"]) == (9.25, 9.25)
    assert (found.tenants["m"].real.lane_s["p50"], found.tenants["m"].shadow.lane_s["p50"]) == (0.25, 2.25)


def test_where_none_was_seen_to_wait_the_wait_is_unknown_and_not_zero():
    log = Log().decided(None, Admit()).decided("small", Admit(), priced=LONG).served()
    part = log.decided(None, Admit(), "open").decided("small", Admit(), "open", priced=LONG).report().total
    assert (part.shadow.lane_unknown, part.shadow.lane_s) == (2, {"p50": None, "p99": None})
    assert (part.real.unsettled, part.real.used_units) == (1, 30.0)


def test_cost_is_real_use_at_the_shadows_coefficient_and_apart_from_it_the_price_of_what_nobody_ran():
    dear = {"coefficient": 2.0, "cost_units": 200.0}
    log = Log().decided(None, Admit(), "ran").decided("small", Admit(), "ran", priced=dear)
    log.served("ran", 20.0, partial=True).served("ran", 30.0)
    log.decided(None, NO_BUDGET, "new").decided("small", Admit(), "new", priced=dear)
    log.decided(None, Admit(), "gone").decided("small", NO_BUDGET, "gone").served("gone", 40.0)
    part = log.report().total
    assert (part.real.priced_units, part.real.used_units) == (200.0, 90.0)
    assert (part.shadow.priced_units, part.shadow.used_units, part.shadow.unrun_units) == (400.0, 100.0, 200.0)
    assert part.real.outcomes == {"admitted": 2, "budget_tenant": 1} == part.shadow.outcomes
    assert log.report().moves == {"budget_tenant -> admitted": 1, "admitted -> budget_tenant": 1}
    assert [change.what for change in log.report().changes] == [["price"], ["outcome", "price"], ["outcome"]]


def test_a_charge_that_is_told_twice_counts_once_and_a_repeated_answer_tells_no_wait():
    log = Log().both(Admit(), "r1").served(lane_s=1.0)
    log._take(log.journals[None].settlement(usage(), 30.0, Settled("repeat", 0.0)))
    log.stances.reply(Reply(id="r1", outcome=Outcome.COMPLETED, repeat=True, waits=Waits(lane_s=77.0)))
    part = log.report().total
    assert (part.real.used_units, part.real.lane_s["p50"]) == (30.0, 1.25)


def test_totals_are_by_tenant():
    log = Log().both(Admit(), "a", tenant="acme").both(NO_BUDGET, "b", tenant="blue")
    found = log.refused(None, "x").refused("small", "x").report()
    assert {tenant: part.requests for tenant, part in found.tenants.items()} == {"acme": 1, "anonymous": 1, "blue": 1}
    assert found.total.requests == 3


def test_nothing_at_all_is_an_empty_report():
    found = Log().report()
    assert (found.compared, found.tenants, found.total.real.queued_s) == (0, {}, {"p50": None, "p99": None})
