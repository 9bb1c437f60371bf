"""What goes to the ledger's scripts and comes back, without a server; and the measure of overshoot."""

import asyncio

import msgspec
import pytest

from streams import ledger_wire as wire
from streams.breaker import Breaker
from streams.budgets import Budgets, BudgetsUnavailable, Closed, Ending, Paid, Redelivered, Refused, Repeated
from streams.limits import LiveLimits
from streams.policy.admission import Facts
from streams.policy.sharing import Capacity, Share
from streams.settings import Bucket, Degrade
from tests.benchmarks.budgets import overshoot_units
from tests.support.clock import FakeClock
from tests.support.ledger import ask, charge, made
from topics import keys
from topics.records import Priority

SETTINGS = made("redis://127.0.0.1:1/0")
BUCKET = Bucket(refill_units_per_s=2, burst_s=30, warm_up_s=3, paced=True)


def sent(payload):
    return msgspec.msgpack.decode(payload)


def test_levels_that_asks_share_are_sent_once():
    asks = [ask("a"), ask("b", tenant="other"), ask("c", lane="low.long", priority=Priority.LOW)]
    window_s, half_life_s, limits, rooms, wanted, hold_s = sent(wire.encode_asks(asks, {}, SETTINGS, lambda _: BUCKET))
    assert (window_s, half_life_s) == (SETTINGS.dedupe_window_s, SETTINGS.streams.fair.half_life_s)
    assert hold_s == SETTINGS.streams.delivery_s + wire._UNDER_WAY_S
    names = ["global:all", "pool:default", "tenant:acme", "class:high", "tenant:other", "class:low"]
    assert limits == [[name, 2.0, 60.0, 3.0, True] for name in names]
    assert [item[7] for item in wanted] == [[1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 3, 6]]
    assert rooms[0][:4] == ["default", False, False, False]


def test_capacity_and_lane_weights_of_the_pools_asked_about_are_sent():
    room = sent(wire.encode_asks([ask("a")], {"default": Capacity(2.0, 5.0)}, SETTINGS, lambda _: BUCKET))[3][0]
    pool = SETTINGS.pools["default"]
    assert room[:4] == ["default", 2.0, 5.0, 5.0 + 2.0 * SETTINGS.streams.fair.window_s]
    weights = dict(zip(room[4], room[5], strict=True))
    assert weights["high.short"] == pool.high_weight * pool.short_weight
    assert weights["low.long"] == pool.low_weight * pool.long_weight


def test_an_id_that_is_answered_without_budget_asks_for_no_level():
    closed = ask("a", tenant="", pool="", lane="", priority=None, closed=True)
    payload = sent(wire.encode_asks([closed], {}, SETTINGS, lambda _: BUCKET))
    assert payload[2:5] == [[], [], [[f"requests.high.short/0/{closed.origin.offset}", "replies"]]]


def test_a_charge_names_who_pays_when_no_reservation_is_left():
    payload = sent(wire.encode_charges([charge("a", 7.0)], SETTINGS, lambda _: BUCKET))
    assert payload[4] == [[1, 7.0, False, 10.0, "default", "high.short", "acme", [1, 2, 3, 4]]]


def test_what_the_scripts_say_is_read():
    share = [30, 20.5, 2, 0.5, 10, 0, 1, 3, [[9.5, 2]]]
    answers = [
        [True, share, 0.25, 0, 0],
        [False, share, 0.25, 3, 1.5],
        [False, share, 0, 4, 0, 60],
        ["closed"],
        ["finished", 12.5, "why", 2],
        ["reserved", 12.5, False],
        ["repeat", 12.5, "replies", True],
    ]
    touched, standings = wire.decode_standings(msgspec.msgpack.encode([7.5, ["global:all", 3], answers]))
    assert (touched.at_s, touched.levels) == (7.5, {"global:all": 3.0})
    known = Share(30, 20.5, 2, 0.5, 10, 0, 1, 3, ((9.5, 2.0),))
    assert standings == [
        Paid(Facts(known, "", 0, None, 0.25)),
        Refused(Facts(known, "tenant", 1.5, None, 0.25)),
        Refused(Facts(known, "class", 0, 60, 0)),
        Closed(),
        Redelivered("finished", 12.5, "why", 2.0),
        Redelivered("reserved", 12.5),
        Repeated(12.5, "replies", True),
    ]


def test_all_keys_of_the_ledger_are_in_one_hash_slot():
    k = keys.Keys("test.")
    named = [k.ledger(), k.rebuild(), k.expiries(), k.shares("p"), k.bucket("pool", "p"), k.reservation("{x}")]
    assert {key[: key.index("}") + 1] for key in [*named, k.claim("a"), k.promoted("a")]} == {"{test.rampmeter}"}


def breaker():
    return Breaker(FakeClock(), SETTINGS.streams.degrade)


class Client:
    """Stands for redis-py: each call ends as the test says."""

    def __init__(self):
        self.ends = asyncio.get_running_loop().create_future()
        self.calls = 0

    def register_script(self, _text):
        async def call(keys, args):
            self.calls += 1
            return await self.ends

        return call


async def refused(budgets):
    with pytest.raises(BudgetsUnavailable) as caught:
        await budgets.finish([Ending("a", "")])
    return caught.value.reason


@pytest.mark.asyncio
async def test_a_slow_call_opens_the_breaker_is_never_cancelled_and_the_next_one_is_not_made():
    client = Client()
    section = SETTINGS.streams.model_copy(update={"degrade": Degrade(timeout_s=0.001)})
    breaker = Breaker(FakeClock(), section.degrade)
    budgets = Budgets(client, SETTINGS.model_copy(update={"streams": section}), breaker, LiveLimits(SETTINGS.streams))
    assert await refused(budgets) == "slow"
    assert breaker.is_open
    assert await refused(budgets) == "open"
    assert client.calls == 1
    late = next(iter(budgets._late))
    client.ends.set_result(msgspec.msgpack.encode([1.0, ["global:all", 5.0], [True]]))
    await late
    await asyncio.sleep(0)
    assert not budgets._late
    assert budgets.take_balances() is None, "a late answer is dropped"


@pytest.mark.asyncio
async def test_a_cancelled_caller_leaves_the_call_to_end_by_itself():
    client = Client()
    budgets = Budgets(client, SETTINGS, Breaker(FakeClock(), SETTINGS.streams.degrade), LiveLimits(SETTINGS.streams))
    caller = asyncio.create_task(budgets.finish([Ending("a", "")]))
    while not client.calls:  # noqa: ASYNC110 - one turn of the loop each
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    late = next(iter(budgets._late))
    client.ends.set_exception(ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        await late


@pytest.mark.asyncio
async def test_balances_of_several_calls_are_taken_together():
    client = Client()
    budgets = Budgets(
        client, SETTINGS, Breaker(FakeClock(), SETTINGS.streams.degrade), LiveLimits(SETTINGS.streams), "me"
    )
    client.ends.set_result(msgspec.msgpack.encode([5.0, ["global:all", 3.0], [True]]))
    await budgets.finish([Ending("a", "")])
    client.ends = asyncio.get_running_loop().create_future()
    client.ends.set_result(msgspec.msgpack.encode([4.0, ["pool:p", 1.0], [True]]))
    await budgets.finish([Ending("b", "")])
    balances = budgets.take_balances()
    assert (balances.at_s, balances.by, balances.levels) == (5.0, "me", {"global:all": 3.0, "pool:p": 1.0})


@pytest.mark.parametrize(
    ("admitted", "expected"),
    [
        ([], 0.0),
        ([(0.0, 100.0), (1.0, 10.0), (2.0, 10.0)], 0.0),
        ([(0.0, 100.0), (1.0, 15.0)], 5.0),
        # Only a window that begins in the middle shows it.
        ([(0.0, 10.0), (50.0, 100.0), (50.5, 9.0), (51.0, 9.0)], 8.0),
    ],
)
def test_overshoot_is_found_in_any_window(admitted, expected):
    assert overshoot_units(admitted, rate_per_s=10.0, burst_units=100.0) == pytest.approx(expected)
