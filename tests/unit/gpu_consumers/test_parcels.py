import asyncio

import pytest
from confluent_kafka import KafkaError

from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.claims import ClaimsUnavailable
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.outbox import Ack, Letter
from gpu_consumers.parcels import Item, Returned, Together
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from tests.support.builders import WALL_S, work
from topics.records import Length, Tier

OK = Ack(None, "replies", 0, 7)
LANE = "lanes.default.medium.short"


class Claims:
    """Which ids are held, which of them for sure, and which are another's when Redis is asked."""

    def __init__(self, *held, sure=(), others=(), away=0):
        self.held, self.sure, self.others, self.away = set(held), {*sure}, {*others}, away

    def holds(self, request_id):
        return request_id in self.held

    def is_sure(self, request_id):
        return request_id in self.sure

    async def hold(self, ids):
        if self.away:
            self.away -= 1
            raise ClaimsUnavailable("ConnectionError")
        self.held -= self.others
        self.sure |= self.held & {*ids}


def entry(request_id="r1"):
    where = Assignment(LANE, 0, Lane(Tier.MEDIUM, Length.SHORT), OffsetTracker(None, [], window_records=9))
    return Entry(Fetched(where, 1, b"", b"", WALL_S), work({"id": request_id}), Ask(1, 1, 1.0))


def letter(topic, *, alone=False):
    return Letter(topic, b"k", b"{}", is_alone=alone)


def handed(together):
    """The one parcel that the poll thread would take."""
    (parcel,) = together.outgoing.take()
    return parcel


def back(together, parcel, acks, *, is_sent=False):
    parcel.acks = dict(zip(parcel.items, acks, strict=True))
    together.returned.put(Returned(parcel, is_sent=is_sent))
    together.deliver()


def test_all_letters_of_a_committed_transaction_are_acknowledged():
    together, acks = Together(Claims(), lambda: None), []
    together.carry(entry(), [Item(letter("replies"), acks.append), Item(letter("usage"), acks.append)], None)
    back(together, handed(together), [OK, OK], is_sent=True)
    assert acks == [OK, OK]
    assert together.outgoing.take() == []


def test_what_replaces_a_refused_letter_goes_with_the_rest_of_its_parcel():
    together, one, refusals = Together(Claims("r1", sure=["r1"]), lambda: None), entry(), []

    def fall_back(ack):
        refusals.append(ack.error)
        together.carry(one, [Item(letter("default"), lambda _: None), Item(letter("dead"), lambda _: None)], None)

    together.carry(one, [Item(letter("gone"), fall_back, falls_back=True), Item(letter("usage"), lambda _: None)], None)
    parcel = handed(together)
    refused = Ack(KafkaError.UNKNOWN_TOPIC_OR_PART, "gone", -1, -1)
    back(together, parcel, [refused, Ack(KafkaError._PURGE_QUEUE, "usage", -1, -1)])
    assert refusals == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    again = handed(together)
    assert again is parcel
    assert sorted(item.letter.topic for item in again.items) == ["dead", "default", "usage"]


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_INFLIGHT])
def test_what_may_yet_succeed_goes_again_as_it_is(code):
    together, acks = Together(Claims("r1", sure=["r1"]), lambda: None), []
    together.carry(entry(), [Item(letter("replies"), acks.append, falls_back=True)], lambda: None)
    parcel = handed(together)
    back(together, parcel, [Ack(code, "replies", -1, -1)])
    assert (handed(together), acks) == (parcel, [])


def test_an_answer_whose_claim_is_lost_is_given_back_and_not_sent():
    claims, lost, acks = Claims("r1", sure=["r1"]), [], []
    together = Together(claims, lambda: None)
    together.carry(entry(), [Item(letter("replies"), acks.append)], lambda: lost.append("r1"))
    parcel = handed(together)
    assert together.is_sure(parcel)
    claims.sure.clear()
    assert not together.is_sure(parcel)
    claims.held.clear()
    back(together, parcel, [OK])
    assert (lost, acks, together.outgoing.take(), together.unsent) == (["r1"], [], [], 0)


async def turn(together):
    """Let it hold again what it will."""
    task = asyncio.create_task(together.hold(0.0))
    for _ in range(9):
        await asyncio.sleep(0)
    task.cancel()


@pytest.mark.asyncio
async def test_an_answer_whose_claim_ran_short_goes_after_it_is_held_anew():
    claims, lost = Claims("r1", away=2), []
    together = Together(claims, lambda: None)
    together.carry(entry(), [Item(letter("replies"), lambda _: None)], lambda: lost.append("r1"))
    parcel = handed(together)
    back(together, parcel, [OK])
    assert together.outgoing.take() == []
    await turn(together)
    assert (together.outgoing.take(), claims.away, lost, together.unsent) == ([parcel], 0, [], 1)


@pytest.mark.asyncio
async def test_an_answer_whose_claim_is_lost_when_it_is_held_anew_is_given_back():
    claims, lost = Claims("r1", others=["r1"]), []
    together = Together(claims, lambda: None)
    together.carry(entry(), [Item(letter("replies"), lambda _: None)], lambda: lost.append("r1"))
    back(together, handed(together), [OK])
    await turn(together)
    assert (together.outgoing.take(), lost, together.unsent) == ([], ["r1"], 0)


def test_a_retry_goes_again_whoever_holds_the_claim():
    together = Together(Claims(), lambda: None)
    together.carry(entry(), [Item(letter("retries"), lambda _: None)], None)
    parcel = handed(together)
    assert together.is_sure(parcel)
    back(together, parcel, [OK])
    assert handed(together) is parcel


def test_an_answer_waits_for_its_chunks():
    together, one = Together(Claims("r1", sure=["r1"]), lambda: None), entry()
    one.open_chunks = 1
    together.carry(one, [Item(letter("replies"), lambda _: None)], lambda: None)
    parcel = handed(together)
    assert not parcel.has_its_chunks
    one.open_chunks = 0
    assert parcel.has_its_chunks


def test_a_letter_that_needs_a_batch_of_its_own_needs_a_transaction_of_its_own():
    together = Together(Claims(), lambda: None)
    together.carry(entry("a"), [Item(letter("replies", alone=True), lambda _: None)], None)
    together.carry(entry("b"), [Item(letter("replies"), lambda _: None)], None)
    assert [parcel.is_alone for parcel in together.outgoing.take()] == [True, False]
