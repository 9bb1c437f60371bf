"""The Lua scripts of admission against a real Redis."""

import asyncio

import pytest

from streams.budgets import Ask, Budgets, Closed, Redelivered, Repeated
from streams.policy.admission import Never, Paid, Short
from streams.settings import Bucket, Streams, StreamsSettings
from topics import clients, keys
from topics.local_redis import LocalRedis
from topics.records import Origin
from topics.settings import Pool, Redis

pytestmark = pytest.mark.asyncio
SLOW = 1e-6
"""A refill so slow that no test sees any of it."""


def made(url, redis_timeout_s=2.0, pools=("default",), **streams):
    buckets = {"global_budget": 1000, "pool_budget": 500, "tenant_budget": 100}
    full = {name: Bucket(refill_units_per_s=SLOW, burst_s=cap / SLOW) for name, cap in buckets.items()}
    return StreamsSettings(
        redis=Redis(url=url, timeout_s=redis_timeout_s),
        pools={pool: Pool() for pool in (*pools, "cpu")},
        streams=Streams(**{**full, **streams}),
    )


@pytest.fixture
def url(redis_server):
    address = redis_server.url.rsplit("/", 1)[0] + "/15"
    clients.redis_sync(made(address)).flushdb()
    return address


@pytest.fixture
def budgets(url):
    return Budgets(clients.redis_async(made(url)), made(url))


def ask(request_id, units=10.0, offset=None, tenant="acme", pool="default", patience_s=0.0, topic="replies", **fields):
    offset = abs(hash(request_id)) % 10**9 if offset is None else offset
    origin = Origin(topic="requests.high.short", partition=0, offset=offset)
    return Ask(request_id, origin, topic, units, pool, tenant, patience_s, **fields)


def levels(url, *names):
    redis = clients.redis_sync(made(url))
    stored = [redis.hget(keys.bucket(*name), "level") for name in names]
    return [None if level is None else pytest.approx(float(level), abs=0.01) for level in stored]


ALL = (("global", "all"), ("pool", "default"), ("tenant", "acme"))


async def test_an_ask_is_paid_on_every_level(budgets, url):
    assert await budgets.reserve([ask("a", 30.0)]) == [Paid()]
    assert levels(url, *ALL) == [970, 470, 70]


async def test_a_refused_ask_changes_no_bucket(budgets, url):
    await budgets.reserve([ask("a", 80.0)])
    before = levels(url, *ALL)
    refused = await budgets.reserve([ask("b", 30.0), ask("c", 101.0)])
    assert [type(standing) for standing in refused] == [Short, Never]
    assert refused[1] == Never("tenant", 100.0)
    assert levels(url, *ALL) == before


async def test_the_level_that_waits_longest_is_named(url):
    settings = made(
        url,
        global_budget=Bucket(refill_units_per_s=100, burst_s=1),
        pool_budget=Bucket(refill_units_per_s=10, burst_s=10),
        tenant_budget=Bucket(refill_units_per_s=50, burst_s=2),
    )
    budgets = Budgets(clients.redis_async(settings), settings)
    standing = (await budgets.reserve([ask("a", 100.0), ask("b", 100.0)]))[1]
    assert standing.level == "pool"


async def test_the_wait_until_it_can_be_paid_is_exact(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=40, burst_s=1))
    budgets = Budgets(clients.redis_async(settings), settings)
    assert await budgets.reserve([ask("a", 40.0)]) == [Paid()]
    standing = (await budgets.reserve([ask("b", 20.0, patience_s=1.0)]))[0]
    assert standing.wait_s == pytest.approx(0.5, abs=0.05)
    await asyncio.sleep(max(0.0, standing.wait_s - 0.1))
    assert isinstance((await budgets.reserve([ask("b", 20.0, patience_s=1.0)]))[0], Short)
    await asyncio.sleep(0.12)
    assert await budgets.reserve([ask("b", 20.0)]) == [Paid()]


async def test_a_batch_cannot_spend_more_than_there_is(budgets):
    answers = await budgets.reserve([ask(f"r{n}", 30.0) for n in range(5)])
    assert [type(answer) for answer in answers] == [Paid, Paid, Paid, Short, Short]


async def test_many_clients_at_once_never_spend_more_than_the_cap(url):
    workers = [Budgets(clients.redis_async(made(url)), made(url)) for _ in range(8)]

    async def spend(worker, number):
        paid = 0
        for turn in range(10):
            asks = [ask(f"{number}-{turn}-{n}", 7.0, tenant=f"t{n % 3}", pool="default") for n in range(10)]
            paid += sum(isinstance(answer, Paid) for answer in await worker.reserve(asks))
        return paid

    paid = sum(await asyncio.gather(*(spend(worker, number) for number, worker in enumerate(workers))))
    assert paid == 3 * (100 // 7)
    spent = paid * 7
    tenants = (("tenant", f"t{n}") for n in range(3))
    assert levels(url, *ALL[:2], *tenants) == [1000 - spent, 500 - spent, 2, 2, 2]


async def test_a_pool_that_is_spent_leaves_the_tenants_money_alone(budgets, url):
    await budgets.reserve([ask(f"r{n}", 100.0, tenant=f"t{n}") for n in range(5)])
    assert (await budgets.reserve([ask("x", 50.0, tenant="new")]))[0].level == "pool"
    assert await budgets.reserve([ask("y", 50.0, tenant="new", pool="cpu")]) == [Paid()]
    assert levels(url, ("tenant", "new")) == [50]


async def test_a_redelivered_record_is_not_charged_again(budgets, url):
    await budgets.reserve([ask("a", 30.0, offset=7)])
    again = await budgets.reserve([ask("a", 30.0, offset=7)])
    assert [(standing.state, isinstance(standing, Redelivered)) for standing in again] == [("reserved", True)]
    assert levels(url, ALL[2]) == [70]


async def test_another_record_with_the_same_id_is_a_repeat_that_knows_where_the_first_is_answered(budgets, url):
    await budgets.reserve([ask("a", 30.0, offset=7, topic="replies.first")])
    repeat = (await budgets.reserve([ask("a", 30.0, offset=8, topic="replies.second")]))[0]
    assert isinstance(repeat, Repeated)
    assert repeat.reply_topic == "replies.first"
    assert levels(url, ALL[2]) == [70]


async def test_two_records_of_one_id_in_one_batch_are_charged_once(budgets, url):
    answers = await budgets.reserve([ask("a", 30.0, offset=7), ask("a", 30.0, offset=8)])
    assert [type(answer) for answer in answers] == [Paid, Repeated]
    assert levels(url, ALL[2]) == [70]


async def test_a_deferred_record_may_be_paid_later_and_its_repeat_stays_a_repeat(budgets, url):
    await budgets.reserve([ask("spend", 100.0)])
    assert isinstance((await budgets.reserve([ask("a", 50.0, offset=7, patience_s=1e12)]))[0], Short)
    assert isinstance((await budgets.reserve([ask("a", 50.0, offset=8)]))[0], Repeated)
    await budgets.settle(["spend"], [0.0])
    assert await budgets.reserve([ask("a", 50.0, offset=7)]) == [Paid()]


async def test_what_was_rejected_stays_rejected_for_its_record(budgets):
    await budgets.reserve([ask("spend", 100.0)])
    assert isinstance((await budgets.reserve([ask("a", 50.0, offset=7)]))[0], Short)
    await budgets.settle(["spend"], [0.0])
    assert (await budgets.reserve([ask("a", 50.0, offset=7)]))[0].state == "rejected"


async def test_a_refusal_is_remembered_without_any_budget(budgets, url):
    closed = ask("a", 0.0, offset=7, tenant="", pool="", closed=True)
    assert await budgets.reserve([closed]) == [Closed()]
    assert (await budgets.reserve([closed]))[0].state == "rejected"
    assert isinstance((await budgets.reserve([ask("a", 5.0, offset=8)]))[0], Repeated)
    assert levels(url, *ALL) == [None, None, None]


async def test_nothing_asked_is_nothing_answered(budgets):
    assert await budgets.reserve([]) == []


async def test_settling_gives_back_what_was_not_used_once(budgets, url):
    await budgets.reserve([ask("a", 60.0)])
    assert await budgets.settle(["a"], [20.0]) == ["settled"]
    assert levels(url, *ALL) == [980, 480, 80]
    assert await budgets.settle(["a"], [20.0]) == ["repeat"]
    assert await budgets.settle(["nobody"], [20.0]) == ["unknown"]
    assert levels(url, *ALL) == [980, 480, 80]


async def test_the_same_id_twice_in_one_settlement_is_settled_once(budgets, url):
    await budgets.reserve([ask("a", 60.0)])
    assert await budgets.settle(["a", "a"], [20.0, 20.0]) == ["settled", "repeat"]
    assert levels(url, ALL[2]) == [80]


async def test_settled_work_is_not_admitted_again_when_its_record_comes_back(budgets):
    await budgets.reserve([ask("a", 60.0, offset=7)])
    await budgets.settle(["a"], [20.0])
    assert (await budgets.reserve([ask("a", 60.0, offset=7)]))[0].state == "settled"


async def test_a_debt_is_paid_before_anyone_else_is_admitted(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=100, burst_s=1))
    budgets = Budgets(clients.redis_async(settings), settings)
    await budgets.reserve([ask("a", 100.0)])
    await budgets.settle(["a"], [150.0])
    standing = (await budgets.reserve([ask("b", 10.0)]))[0]
    assert standing.wait_s == pytest.approx(0.6, abs=0.1)


async def test_a_debt_outlives_every_expiry(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=1, burst_s=10))
    budgets = Budgets(clients.redis_async(settings), settings)
    await budgets.reserve([ask("a", 10.0)])
    await budgets.settle(["a"], [5000.0])
    lives_s = clients.redis_sync(settings).pttl(keys.bucket("tenant", "acme")) / 1000
    assert lives_s > 5000


async def test_a_refund_never_fills_beyond_the_cap(budgets, url):
    await budgets.reserve([ask("a", 60.0)])
    clients.redis_sync(made(url)).hset(keys.bucket("tenant", "acme"), "level", "90")
    await budgets.settle(["a"], [0.0])
    assert levels(url, ALL[2]) == [100]


async def test_the_scripts_come_back_after_a_script_flush(budgets, url):
    await budgets.reserve([ask("a", 10.0)])
    clients.redis_sync(made(url)).script_flush()
    assert await budgets.reserve([ask("b", 10.0)]) == [Paid()]
    clients.redis_sync(made(url)).script_flush()
    assert await budgets.settle(["a"], [1.0]) == ["settled"]
    clients.redis_sync(made(url)).script_flush()
    assert await budgets.promotable(["a"]) == [True]


async def test_an_id_is_promoted_once_and_never_when_it_is_claimed(budgets, url):
    clients.redis_sync(made(url)).hset(keys.claim("b"), "state", "running")
    assert await budgets.promotable(["a", "b", "a"]) == [True, False, False]
    assert await budgets.promotable(["a", "b"]) == [False, False]


async def test_a_tenant_may_have_its_own_budget(url):
    settings = made(url, tenant_budgets={"big": Bucket(refill_units_per_s=SLOW, burst_s=400 / SLOW)})
    budgets = Budgets(clients.redis_async(settings), settings)
    answers = await budgets.reserve([ask("a", 300.0, tenant="big"), ask("b", 300.0, tenant="small")])
    assert answers == [Paid(), Never("tenant", 100.0)]


async def test_memory_of_an_id_ends_with_the_dedupe_window(url):
    settings = made(url).model_copy(update={"dedupe_window_s": 0.2})
    budgets = Budgets(clients.redis_async(settings), settings)
    await budgets.reserve([ask("a", 10.0, offset=7)])
    await asyncio.sleep(0.3)
    assert await budgets.reserve([ask("a", 10.0, offset=8)]) == [Paid()]


async def test_calls_wait_while_redis_is_away_and_none_is_lost(tmp_path):
    server = LocalRedis(tmp_path)
    server.start()
    try:
        settings = made(server.url, redis_timeout_s=0.5)
        budgets = Budgets(clients.redis_async(settings), settings)
        assert await budgets.reserve([ask("a", 10.0)]) == [Paid()]
        await asyncio.to_thread(server.stop)
        waiting = [asyncio.create_task(budgets.reserve([ask(f"w{n}", 10.0)])) for n in range(5)]
        await asyncio.wait(waiting, timeout=1.0)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(server.start)
        assert await asyncio.wait_for(asyncio.gather(*waiting), 20) == [[Paid()]] * 5
    finally:
        server.stop()
