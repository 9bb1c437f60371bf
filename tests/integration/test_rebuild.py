"""Budgets that Redis lost come back from the log; real Redis, real broker."""

import asyncio
import time

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from streams import rebuild
from streams.budgets import BudgetsUnavailable, Charge, Paid
from tests.support.own_redis import FULL_UNITS, Ledger, own_redis
from topics import keys
from topics.records import Priority

__all__ = ["own_redis"]

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def ledger(settings, own_redis):
    made = Ledger(settings, own_redis, timeout_s=5.0)
    await made.fill()
    return made


def rebuilds(result="restored"):
    return REGISTRY.get_sample_value("rampmeter_streams_rebuilds_total", {"result": result}) or 0.0


def is_lost_by_gauge():
    return REGISTRY.get_sample_value("rampmeter_streams_budgets_lost")


async def reserve(ledger, *asks):
    standings = await ledger.budgets.reserve(asks, {})
    assert all(isinstance(standing, Paid) for standing in standings)


def settlement(ask, units):
    charged = (ask.units, ask.tenant, ask.pool, Priority.HIGH, ask.lane)
    return Charge(ask.id, 1, units, False, *charged)


async def work(ledger, batches=8):
    """Reservations of two tenants, and settlements of some of them, each batch logged."""
    for batch in range(batches):
        asks = [ledger.ask(f"{batch}/{n}", 10.0 + n, tenant=("acme", "blue")[n % 2]) for n in range(5)]
        await reserve(ledger, *asks)
        ledger.log()
        await ledger.budgets.settle([settlement(asks[0], 4.0), settlement(asks[1], 40.0)])
        ledger.log()


@pytest.mark.parametrize("unlogged_units", [0.0, 30.0])
async def test_after_a_flush_balances_differ_by_no_more_than_what_was_reserved_and_not_logged(ledger, unlogged_units):
    await work(ledger)
    if unlogged_units:
        await reserve(ledger, ledger.ask("unlogged", unlogged_units, tenant="acme"))
    before = ledger.levels()
    ledger.sync.flushdb()
    with pytest.raises(BudgetsUnavailable):
        await ledger.budgets.reserve([ledger.ask("meanwhile")], {})
    assert set(ledger.levels().values()) == {None}
    await ledger.rebuilt()
    expected = {name: units + (0.0 if name == "tenant:blue" else unlogged_units) for name, units in before.items()}
    assert ledger.levels() == pytest.approx(expected, abs=0.01)
    assert before["tenant:blue"] < before["tenant:acme"] < FULL_UNITS
    await reserve(ledger, ledger.ask("afterwards"))


async def test_flushes_under_load_forget_at_most_the_batch_under_way_each(ledger):
    """What flushes comes from a thread, so that it falls between any two steps of the load."""
    batch_units, flushes = 4.0, 5
    paid = 0

    async def load():
        nonlocal paid
        while True:
            try:
                await ledger.budgets.reserve([ledger.ask(f"{time.monotonic()}/{n}", 1.0) for n in range(4)], {})
            except BudgetsUnavailable:
                await asyncio.sleep(0.01)
            else:
                paid += 1
                await asyncio.to_thread(ledger.log)

    tasks = [asyncio.ensure_future(load()), asyncio.ensure_future(ledger.rebuild.run())]
    for _ in range(flushes):
        already, count = paid, rebuilds()
        while paid < already + 20:  # noqa: ASYNC110 - the load knows nothing of this test
            await asyncio.sleep(0.01)
        await asyncio.to_thread(ledger.sync.flushdb)
        while rebuilds() == count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    spent_units = FULL_UNITS - ledger.levels()["tenant:acme"]
    assert (paid - flushes) * batch_units - 0.01 <= spent_units <= (paid + 1) * batch_units


async def test_debt_comes_back_too(ledger):
    ask = ledger.ask("long", 10.0)
    await reserve(ledger, ask)
    await ledger.budgets.settle([settlement(ask, FULL_UNITS + 500.0)])
    ledger.log()
    ledger.sync.flushdb()
    await ledger.rebuilt()
    assert ledger.levels()["tenant:acme"] == pytest.approx(-500.0, abs=0.01)


async def test_a_new_server_at_the_same_address_gets_the_balances(ledger, own_redis):
    await work(ledger)
    before = ledger.levels()
    own_redis.stop()
    await ledger.rebuild.step()
    assert ledger.breaker.is_open
    own_redis.start()
    await ledger.rebuilt()
    assert not ledger.breaker.is_open
    assert ledger.levels() == pytest.approx(before, abs=0.01)


async def test_a_lost_ledger_shows_in_the_gauge_until_it_is_whole(ledger, monkeypatch):
    ledger.sync.flushdb()
    ledger.sync.set(keys.of(ledger.settings).rebuild(), "another worker")
    await ledger.rebuild.step()
    assert (ledger.budgets.is_lost, is_lost_by_gauge()) == (True, 1)
    ledger.sync.delete(keys.of(ledger.settings).rebuild())
    await ledger.rebuilt()
    assert (ledger.budgets.is_lost, is_lost_by_gauge()) == (False, 0)


async def test_of_two_workers_one_reads_and_both_go_on(settings, own_redis):
    workers = [Ledger(settings, own_redis, timeout_s=5.0) for _ in range(2)]
    await workers[0].fill()
    await work(workers[0])
    before = workers[0].levels()
    workers[0].sync.flushdb()
    count = rebuilds()
    await asyncio.gather(*(worker.rebuild.step() for worker in workers))
    await asyncio.gather(*(worker.rebuild.step() for worker in workers))
    assert rebuilds() == count + 1
    assert [worker.budgets.is_lost for worker in workers] == [False, False]
    assert workers[1].levels() == pytest.approx(before, abs=0.01)


async def test_a_second_restore_takes_nothing_back(ledger):
    await work(ledger)
    ledger.sync.flushdb()
    await ledger.rebuilt()
    await reserve(ledger, ledger.ask("afterwards", 100.0))
    spent = ledger.levels()
    await ledger.rebuild._restore()
    assert ledger.levels() == spent


async def test_while_the_log_cannot_be_read_nothing_is_restored_and_the_lock_is_free(ledger, monkeypatch):
    await work(ledger, 1)
    ledger.sync.flushdb()
    failed, kafka = rebuilds("failed"), ledger.settings.kafka
    monkeypatch.setattr(rebuild, "_READ_LIMIT_S", 0.2)
    ledger.rebuild._settings = ledger.settings.model_copy(update={"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    await ledger.rebuild.step()
    assert (ledger.budgets.is_lost, rebuilds("failed"), ledger.sync.get(keys.of(ledger.settings).rebuild())) == (
        True,
        failed + 1,
        None,
    )
    monkeypatch.undo()
    ledger.rebuild._settings = ledger.settings.model_copy(update={"kafka": kafka})
    await ledger.rebuilt()
    assert not ledger.budgets.is_lost


async def test_a_reader_that_died_holds_the_others_up_for_a_bounded_time(ledger, monkeypatch):
    async def die():
        raise asyncio.CancelledError

    ledger.sync.flushdb()
    monkeypatch.setattr(ledger.rebuild, "_restore", die)
    monkeypatch.setattr(ledger.rebuild._client, "delete", lambda _key: die())
    with pytest.raises(asyncio.CancelledError):
        await ledger.rebuild.step()
    assert 0 < ledger.sync.pttl(keys.of(ledger.settings).rebuild()) <= rebuild._LOCK_S * 1000


async def test_the_first_start_of_all_begins_with_an_empty_ledger(settings, own_redis):
    ledger = Ledger(settings, own_redis, timeout_s=5.0)
    with pytest.raises(BudgetsUnavailable):
        await ledger.budgets.reserve([ledger.ask("early")], {})
    await ledger.rebuilt()
    assert not ledger.budgets.is_lost
    assert await ledger.budgets.reserve([ledger.ask("later")], {})
