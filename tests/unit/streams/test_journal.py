import pytest

from streams.journal import POLICY_VERSION, Journal
from streams.ledger_wire import Settled
from streams.policy.admission import CANCELLED
from streams.policy.verification import Refusal
from streams.settings import Bucket, Streams, StreamsSettings
from tests.support.builders import WALL_S, request, usage, work
from tests.support.clock import FakeClock
from topics import codec
from topics.outcomes import Outcome, Reason
from topics.records import Control, ControlAction, ControlKind

SETTINGS = StreamsSettings(streams=Streams(tenant_budget=Bucket(refill_units_per_s=5.0, burst_s=2.0)))
JOURNAL = Journal(SETTINGS, FakeClock(WALL_S), "streams-1")
LIMITS, PAUSE = ControlAction.LIMITS, ControlAction.PAUSE


def order(action, **fields):
    return Control(id="o1", action=action, kind=ControlKind.TENANT, name="acme", at_s=7.0, by="me@here", **fields)


def refusal():
    asked = request()
    return Refusal("r1", asked.reply, asked.origin, Outcome.REJECTED_INVALID, Reason.BAD_HEADER, "why", WALL_S)


def decision(outgoing):
    return codec.decode_decision(outgoing.value)


ENTRIES = {
    "admission": lambda: JOURNAL.admission(work(), CANCELLED, {}),
    "verification": lambda: JOURNAL.refusal(refusal()),
    "promotion": lambda: JOURNAL.promotion(work(), {}),
    "settlement": lambda: JOURNAL.settlement(usage(), 1.0, Settled("settled", 2.0)),
    "control": lambda: JOURNAL.control(order(PAUSE)),
}


@pytest.mark.parametrize("stage", ENTRIES)
def test_each_entry_says_its_stage_who_made_it_when_and_by_which_rules(stage):
    outgoing = ENTRIES[stage]()
    made = decision(outgoing)
    assert (outgoing.topic, outgoing.key) == ("decisions", made.id.encode())
    assert (made.stage, made.by, made.at_s, made.settings_hash) == (stage, "streams-1", WALL_S, SETTINGS.short_hash())
    assert made.inputs["policy_version"] == POLICY_VERSION


def test_a_settlement_tells_the_outcome_and_what_came_of_the_reservation():
    made = decision(JOURNAL.settlement(usage(outcome=Outcome.FAILED), 12.34567, Settled("repeat", 17.5)))
    assert (made.id, made.verdict, made.reason) == ("r1", "repeat", "failed")
    assert (made.inputs["real_units"], made.inputs["refunded_units"]) == (12.346, 17.5)


@pytest.mark.parametrize(
    ("given", "figures"),
    [
        (order(PAUSE), (None, None)),
        (order(LIMITS, refill_units_per_s=7.0), (7.0, 2.0)),
        (order(LIMITS), (None, None)),
    ],
    ids=["a pause", "a change of limits", "a reset"],
)
def test_an_order_is_recorded_with_who_gave_it_and_the_budget_that_it_led_to(given, figures):
    made = decision(JOURNAL.control(given))
    assert (made.id, made.verdict, made.reason) == ("o1", given.action, "tenant")
    assert (made.inputs["name"], made.inputs["ordered_by"], made.inputs["ordered_at_s"]) == ("acme", "me@here", 7.0)
    assert (made.inputs.get("refill_units_per_s"), made.inputs.get("burst_s")) == figures


def test_what_a_shadow_decides_carries_its_name_and_what_is_served_none():
    shadow = Journal(StreamsSettings(streams=Streams(shadow="small")), FakeClock(WALL_S), "shadow-small-1")
    made = [decision(journal.admission(work(), CANCELLED, {})) for journal in (shadow, JOURNAL)]
    assert [one.shadow for one in made] == ["small", None]
