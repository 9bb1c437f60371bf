"""An answer of which nobody knows whether the broker has it is not given twice."""

import pytest

from streams import ledger_wire, sending
from streams.apply import Writer
from streams.budgets import BudgetsUnavailable, New, Redelivered
from streams.fleet import Fleet
from streams.outbox import Undelivered
from streams.policy.admission import CANCELLED, Admit
from streams.repeats import Repeats
from streams.sending import Sending
from streams.settings import StreamsSettings
from tests.support.builders import WALL_S, work
from tests.support.clock import FakeClock
from topics import codec
from topics.errors import ConfigError

pytestmark = pytest.mark.asyncio
SETTINGS = StreamsSettings()
CLOCK = FakeClock(WALL_S)
WRITER = Writer(SETTINGS, CLOCK, Fleet(SETTINGS, CLOCK), "streams-1")
ANSWER, ENTRY = WRITER.apply(work(), CANCELLED, {})
LANE, _ = WRITER.apply(work(), Admit(), {})
OURS, OTHERS = Redelivered("finished", 1.0, None, 20.0), Redelivered("finished", 1.0, None, 2.0)


class Outbox:
    """Says in turn of each delivery what is not there; then all is."""

    def __init__(self, *undelivered):
        self.sent, self._undelivered = [], list(undelivered)

    async def deliver(self, records):
        self.sent.append(list(records))
        return self._undelivered.pop(0) if self._undelivered else []


class Ledger:
    def __init__(self, *standings):
        self._standings, self.asked = list(standings), []

    async def reserve(self, asks, _):
        self.asked.append(asks)
        if self._standings[0] is None:
            raise BudgetsUnavailable("away")
        return [self._standings.pop(0)]


class Log(Repeats):
    def __init__(self, *ids):
        super().__init__(SETTINGS, WRITER)
        self.ids, self.looked = ids, 0

    async def first_answers(self, places):
        self.looked += len(places)
        return {place.id: codec.decode_answer(ANSWER.value) for place in places if place.id in self.ids}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(sending, "_LOOK_S", 0.0)
    monkeypatch.setattr(ledger_wire, "_UNDER_WAY_S", 0.0)


def unsure(*records):
    return [Undelivered(record, "timed out", is_unsure=True) for record in records]


def made(outbox, ledger, log=()):
    log = Log(*log)
    return Sending(SETTINGS, outbox, WRITER, ledger, log), log


async def test_one_that_is_ours_and_in_no_log_is_sent_again():
    outbox = Outbox(unsure(ANSWER))
    await made(outbox, Ledger(OURS))[0].send([ANSWER, ENTRY])
    assert outbox.sent == [[ANSWER, ENTRY], [ANSWER]]


async def test_one_that_arrived_is_not():
    outbox = Outbox(unsure(ANSWER))
    await made(outbox, Ledger(OURS), ["r1"])[0].send([ANSWER])
    assert outbox.sent == [[ANSWER]]


async def test_one_that_another_run_may_be_giving_waits_and_is_looked_up_then():
    outbox, ledger = Outbox(unsure(ANSWER)), Ledger(OTHERS, OTHERS, OURS)
    made_, log = made(outbox, ledger, ["r1"])
    await made_.send([ANSWER])
    assert (len(ledger.asked), log.looked, outbox.sent) == (3, 1, [[ANSWER]])
    assert all(ask.only_asks for asks in ledger.asked for ask in asks)


@pytest.mark.parametrize("standing", [None, New()])
async def test_where_the_ledger_knows_nothing_the_log_alone_says(standing):
    outbox = Outbox(unsure(ANSWER))
    await made(outbox, Ledger(standing))[0].send([ANSWER])
    assert outbox.sent == [[ANSWER], [ANSWER]]


async def test_what_its_topic_refuses_is_dead_lettered_and_what_ours_do_is_an_error():
    outbox = Outbox([Undelivered(ANSWER, "no such topic")])
    await made(outbox, Ledger())[0].send([ANSWER])
    (letter,) = outbox.sent[1]
    assert codec.decode_dead_letter(letter.value).id == "r1"
    with pytest.raises(ConfigError):
        await made(Outbox([Undelivered(LANE, "no such topic")]), Ledger())[0].send([LANE])
