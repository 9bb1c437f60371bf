"""What leaves a shadow, and when what it admitted ends in its ledger."""

import pytest

from streams import shadow
from streams.apply import Writer
from streams.fleet import Fleet
from streams.outbox import Outgoing
from streams.policy.admission import CANCELLED, Admit, Defer
from streams.policy.fates import Refused, Used
from streams.settings import Streams, StreamsSettings
from streams.shadow import Open, Shadow
from tests.support.builders import body, work
from tests.support.clock import FakeClock
from topics import catalog, codec
from topics.records import Tokens
from topics.settings import Model

MODEL = Model(input_units_per_token=1.0, output_units_per_token=1.0)
SETTINGS = StreamsSettings(
    streams=Streams(shadow="small"), models={"llama-3-8b": MODEL}, default_model="llama-3-8b"
)  # fmt: skip
USED = Used(Tokens(prompt=10, output=5), service_s=4.0)


def test_its_name_is_a_word_that_fits_into_a_group_and_a_key():
    for wrong in ("", "A", "a/b", "a b", "x" * 33):
        with pytest.raises(ValueError, match="shadow"):
            Streams(shadow=wrong)


class Ledger:
    """Stands for the budgets: what was settled."""

    def __init__(self):
        self.settled = []

    async def settle(self, charges):
        self.settled += charges
        return []


class Sent:
    """The outbox behind the fence."""

    def __init__(self):
        self.records = []

    async def deliver(self, records):
        self.records += records
        return []


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def stage(clock):
    sent, ledger, fleet = Sent(), Ledger(), Fleet(SETTINGS, clock)
    return Shadow(SETTINGS, clock, sent, ledger, fleet), Writer(SETTINGS, clock, fleet, "shadow-small-1"), sent, ledger


def asked(request_id="r1", **fields):
    return work({"id": request_id, "body": body()}, {"service_s": 2.0}, **fields)


@pytest.mark.asyncio
@pytest.mark.parametrize("verdict", [Admit(), Defer(1, "budget_tenant"), CANCELLED])
async def test_of_all_that_follows_from_a_verdict_only_the_marked_decision_leaves(stage, verdict):
    made, writer, sent, _ = stage
    records = writer.apply(asked(), verdict, {})
    assert len(records) == 2
    await made.deliver(records)
    (left,) = sent.records
    assert left.topic == "decisions"
    assert codec.decode_decision(left.value).shadow == "small"


@pytest.mark.asyncio
async def test_no_topic_but_the_decisions_takes_anything(stage):
    made, _, sent, _ = stage
    every = [Outgoing(topic.name, b"k", None) for topic in catalog.topics(SETTINGS)]
    await made.deliver(every)
    assert [record.topic for record in sent.records] == ["decisions"]


@pytest.mark.asyncio
async def test_what_is_deferred_comes_back_after_its_delay_once_and_without_its_text(stage, clock):
    made, writer, _, _ = stage
    await made.deliver(writer.apply(asked("late"), Defer(5, "budget_tenant"), {}))
    await made.deliver(writer.apply(asked("soon"), Defer(1, "budget_tenant"), {}))
    clock.advance(0.9)
    assert made.take_back() == []
    clock.advance(0.2)
    (soon,) = made.take_back()
    assert (soon.candidate.id, soon.is_back, bytes(soon.candidate.item.request.body)) == ("soon", True, b"null")
    clock.advance(5)
    assert [pending.candidate.id for pending in made.take_back()] == ["late"]
    assert made.take_back() == []


@pytest.mark.asyncio
async def test_what_was_admitted_ends_when_its_fate_is_told(stage, clock):
    made, writer, _, ledger = stage
    for request_id in ("runs", "refused", "unknown"):
        await made.deliver(writer.apply(asked(request_id), Admit(), {}))
    await made.settle()
    assert ledger.settled == []
    made.note("runs", USED)
    made.note("refused", Refused())
    await made.settle()
    assert [(charge.id, charge.units) for charge in ledger.settled] == [("runs", 15.0)]
    clock.advance(2.1)
    await made.settle()
    assert [(charge.id, charge.units) for charge in ledger.settled[1:]] == [("refused", 100.0)]


def opened():
    return Open(SETTINGS)


def ids(charges):
    return [(charge.id, charge.units, charge.partial) for charge in charges]


def test_one_that_ended_before_the_shadow_admits_it_is_open_for_as_long_as_it_really_ran():
    made = opened()
    made.note("r1", USED, 0.0)
    made.admit(asked(), 10.0, lasts_s=99.0)
    assert made.take_due(13.9) == []
    assert ids(made.take_due(14.0)) == [("r1", 15.0, False)]


def test_one_that_was_refused_before_the_shadow_admits_it_is_open_for_as_long_as_was_predicted():
    made = opened()
    made.note("r1", Refused(), 0.0)
    made.admit(asked(), 10.0, lasts_s=3.0)
    assert made.take_due(12.9) == []
    assert ids(made.take_due(13.0)) == [("r1", 100.0, False)]


def test_parts_are_charged_as_they_come_and_only_the_last_attempt_ends_it():
    made = opened()
    made.note("r1", Used(Tokens(prompt=1, output=0), partial=True), 0.0)  # nobody's yet
    made.admit(asked(), 1.0, lasts_s=3.0)
    made.note("r1", Used(Tokens(prompt=7, output=0), partial=True), 2.0)
    made.note("r1", Used(Tokens(prompt=8, output=2), attempt=2), 3.0)
    made.note("r1", Refused(), 3.0)  # of a later request with its id: nothing of it is open
    assert ids(made.take_due(3.0)) == [("r1", 7.0, True), ("r1", 10.0, False)]
    assert made.take_due(1e9) == []


def test_what_no_budget_holds_is_charged_in_full():
    made = opened()
    made.admit(asked(unreserved=True), 0.0, lasts_s=0.0)
    made.note("r1", USED, 0.0)
    assert [charge.reserved_units for charge in made.take_due(0.0)] == [0.0]


def test_of_too_many_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(shadow, "MAX_REQUESTS", 2)
    made = opened()
    for request_id in ("a", "b", "c"):
        made.admit(asked(request_id), 0.0, lasts_s=0.0)
        made.note(f"x{request_id}", USED, 0.0)
    for request_id in ("a", "b", "c"):
        made.note(request_id, USED, 0.0)
    assert [one for one, *_ in ids(made.take_due(0.0))] == ["b", "c"]
