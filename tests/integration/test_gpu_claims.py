import asyncio
import contextlib
import dataclasses

import pytest

from gpu_consumers.claims import Asked, Claimed, Claims, ClaimsUnavailable, Place, Terms, Verdict
from tests.support.clock import FakeClock
from topics import clients, keys

DELIVERY_S = 20.0
LATER_S = 4e9
"""So far ahead that no memory of Redis is younger."""


@pytest.fixture
def redis(settings):
    with clients.redis_sync(settings) as client:
        yield client


@contextlib.asynccontextmanager
async def claimants(settings, *owners, lease_s=5.0):
    client = clients.redis_async(settings)
    clock = FakeClock()
    try:
        yield (
            [Claims(client, clock, Terms(owner, keys.of(settings), lease_s, 60.0, DELIVERY_S)) for owner in owners],
            clock,
        )
    finally:
        await client.aclose()


def ask(request_id, made_s=LATER_S):
    return Asked(request_id, 1, made_s)


def expire(settings, redis, request_id):
    redis.hset(keys.of(settings).claim(request_id), "lease_until_ms", 1)


async def verdicts(claims, *ids):
    return [claimed.verdict for claimed in await claims.claim([ask(request_id) for request_id in ids])]


@pytest.mark.asyncio
async def test_one_of_two_gets_an_id_and_the_other_finds_it_held(settings):
    async with claimants(settings, "a", "b") as ((a, b), _):
        assert await verdicts(a, "x", "y") == [Verdict.MINE, Verdict.MINE]
        assert await verdicts(b, "x", "z") == [Verdict.HELD, Verdict.MINE]
        assert (a.holds("x"), b.holds("x")) == (True, False)


@pytest.mark.asyncio
async def test_an_answered_id_is_done_for_all_and_remembered(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await a.claim([ask("x")])
        await a.done([("x", Place("replies", 2, 7))])
        assert await verdicts(b, "x") == [Verdict.DONE]
        assert not a.holds("x")
        kept = redis.hgetall(keys.of(settings).claim("x"))
        assert (kept[b"topic"], kept[b"partition"], kept[b"offset"]) == (b"replies", b"2", b"7")
        assert 50_000 < redis.pttl(keys.of(settings).claim("x")) <= 60_000


@pytest.mark.asyncio
async def test_a_lease_that_ran_out_is_taken_over_with_the_first_claims_time(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await a.claim([ask("x")])
        since_ms = int(redis.hget(keys.of(settings).claim("x"), "since_ms"))
        expire(settings, redis, "x")
        claimed = (await b.claim([ask("w"), ask("x")]))[1]
        assert (claimed.verdict, claimed.since_s) == (Verdict.TAKEOVER, since_ms / 1000)
        assert await a.renew(["x"]) == ["x"]
        assert not a.holds("x")
        assert await b.renew(["x"]) == []
        expire(settings, redis, "x")
        assert (await a.claim([ask("x")]))[0].since_s == since_ms / 1000


@pytest.mark.asyncio
async def test_an_id_whose_claim_was_answered_by_silence_is_ours_all_the_same(settings):
    async with claimants(settings, "a", "a") as ((a, same_life), _):
        await a.claim([ask("x")])
        assert await verdicts(same_life, "x") == [Verdict.MINE]


@pytest.mark.asyncio
async def test_a_claim_that_vanished_with_the_memory_of_redis_is_put_back(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await a.claim([ask("x")])
        redis.flushdb()
        assert await a.renew(["x"]) == []
        assert await verdicts(b, "x") == [Verdict.HELD]


@pytest.mark.asyncio
async def test_a_released_id_is_free_and_only_its_owner_releases_it(settings):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await a.claim([ask("x")])
        await b.release(["x"])
        assert await verdicts(b, "x") == [Verdict.HELD]
        await a.release(["x"])
        assert await verdicts(b, "x") == [Verdict.MINE]


@pytest.mark.asyncio
async def test_owners_lost_are_counted_and_a_deferred_takeover_keeps_the_past_and_does_not_count(settings, redis):
    async with claimants(settings, "a", "b", "c") as ((a, b, c), _):
        await a.claim([ask("x")])
        since_s = int(redis.hget(keys.of(settings).claim("x"), "since_ms")) / 1000
        expire(settings, redis, "x")
        assert (await b.claim([ask("x")]))[0].takeovers == 1
        expire(settings, redis, "x")
        assert await c.claim([ask("x"), ask("y")]) == [Claimed(Verdict.TAKEOVER, since_s, 2), Claimed(Verdict.MINE)]
        await b.defer(["x"])  # it is not the owner
        assert redis.hget(keys.of(settings).claim("x"), "owner") == b"c"
        await c.defer(["x"])
        assert not c.holds("x")
        assert await a.claim([ask("x")]) == [Claimed(Verdict.TAKEOVER, since_s, 2)]
        await a.release(["x"])
        assert await b.claim([ask("x")]) == [Claimed(Verdict.MINE)]


@pytest.mark.asyncio
async def test_a_takeover_that_was_answered_by_silence_is_one_still_and_counts_once(settings, redis):
    async with claimants(settings, "a", "b", "b") as ((a, b, same_life), _):
        await a.claim([ask("x")])
        expire(settings, redis, "x")
        assert await b.claim([ask("x")]) == await same_life.claim([ask("x")])
        assert redis.hget(keys.of(settings).claim("x"), "takeovers") == b"1"


@pytest.mark.asyncio
async def test_the_first_answer_stays(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await a.claim([ask("x")])
        await a.done([("x", Place("replies", 0, 1))])
        await b.done([("x", Place("replies", 0, 2))])
        assert redis.hget(keys.of(settings).claim("x"), "offset") == b"1"


@pytest.mark.asyncio
async def test_a_claim_is_sure_only_while_it_outlasts_an_answer_that_goes_out_now(settings):
    async with claimants(settings, "a", lease_s=6.0) as ((a,), clock):
        await a.claim([ask("x")])
        assert not a.is_sure("x")
        assert await a.hold(["x"]) == []
        clock.advance(2.9)
        assert a.is_sure("x")
        assert await a.renew(["x"]) == []
        assert a.is_sure("x")
        clock.advance(0.2)
        assert not a.is_sure("x")
        await a.hold(["x"])
        assert a.is_sure("x")
        assert not a.is_sure("y")


@pytest.mark.asyncio
async def test_a_claim_left_to_lapse_is_renewed_no_more_and_goes_to_the_next(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await a.claim([ask("x")])
        a.let_lapse(["x", "unknown"])
        assert not a.holds("x")
        assert await a.renew(["x"]) == []
        expire(settings, redis, "x")
        assert await verdicts(b, "x") == [Verdict.TAKEOVER]


@pytest.mark.asyncio
async def test_a_claim_whose_answer_may_be_under_way_is_held_past_its_lease(settings, redis):
    async with claimants(settings, "a", "b", lease_s=0.05) as ((a, b), _):
        await a.claim([ask("x"), ask("y")])
        await a.hold(["x"])
        await a.renew(["x", "y"])
        left_ms = int(redis.hget(keys.of(settings).claim("x"), "lease_until_ms")) - redis.time()[0] * 1000
        assert left_ms > DELIVERY_S * 1000
        await asyncio.sleep(0.1)
        assert await verdicts(b, "x", "y") == [Verdict.HELD, Verdict.TAKEOVER]


@pytest.mark.asyncio
async def test_no_call_is_made_for_no_ids(settings):
    async with claimants(settings, "a") as ((a,), _):
        assert await a.claim([]) == []
        assert await a.renew([]) == []


@pytest.mark.asyncio
async def test_redis_that_does_not_answer_is_told_apart_from_an_answer(settings):
    away = settings.model_copy(update={"redis": settings.redis.model_copy(update={"url": "redis://127.0.0.1:9/0"})})
    async with claimants(away, "a") as ((a,), _):
        with pytest.raises(ClaimsUnavailable):
            await a.claim([ask("x")])
        assert not a.available
        assert not a.holds("x")


@pytest.mark.asyncio
async def test_who_goes_without_redis_begins_unsure_and_asks_no_more_until_it_is_back(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        away = settings.model_copy(update={"redis": settings.redis.model_copy(update={"url": "redis://127.0.0.1:9/0"})})
        gone = clients.redis_async(away)
        a._terms = dataclasses.replace(a._terms, goes_without=True)
        there, a._client = a._client, gone
        assert await verdicts(a, "x") == [Verdict.UNCLAIMED]
        assert (a.holds("x"), a.is_sure("x"), a.available) == (True, False, False)
        a._client = there
        assert await verdicts(a, "y") == [Verdict.UNCLAIMED]
        assert await verdicts(b, "x") == [Verdict.MINE]
        await a.look()
        assert a.available
        assert await a.renew(["x", "y"]) == ["x"]
        assert await verdicts(b, "y") == [Verdict.HELD]
        await gone.aclose()


@pytest.mark.asyncio
async def test_work_that_is_alive_keeps_its_reservation_and_nothing_else_gets_one(settings, redis):
    ids = [f"r{n}" for n in range(1100)]
    redis.zadd(keys.of(settings).expiries(), dict.fromkeys([*ids, "held"], 5.0) | {"far": 4e9})
    async with claimants(settings, "a", "b") as ((a, b), _):
        await b.claim([ask("held")])
        redis.zadd(keys.of(settings).expiries(), {"held": 5.0})
        await a.claim([ask(i) for i in [*ids, "held", "far", "unreserved"]])
        now_s = redis.time()[0]
        assert all(now_s + 55 < redis.zscore(keys.of(settings).expiries(), i) <= now_s + 65 for i in ids)
        assert (
            redis.zscore(keys.of(settings).expiries(), "held"),
            redis.zscore(keys.of(settings).expiries(), "far"),
        ) == (5.0, 4e9)
        assert redis.zscore(keys.of(settings).expiries(), "unreserved") is None
        redis.zadd(keys.of(settings).expiries(), {"r0": 5.0, "r1": 5.0})
        redis.hset(keys.of(settings).claim("r1"), "owner", "someone")
        await a.renew(["r0", "r1"])
        assert redis.zscore(keys.of(settings).expiries(), "r0") > now_s
        assert redis.zscore(keys.of(settings).expiries(), "r1") == 5.0


OLD_S = 1e9


def age_memory(settings, redis, seconds):
    key = keys.of(settings).memory()
    redis.hset(key, "since_ms", int(redis.hget(key, "since_ms")) - int(seconds * 1000))


@pytest.mark.asyncio
async def test_what_is_older_than_the_first_memory_must_be_looked_up_and_what_is_younger_need_not(settings):
    async with claimants(settings, "a") as ((a,), _):
        await a.look()
        assert await a.claim([ask("old", OLD_S), ask("new")]) == [
            Claimed(Verdict.FORGOTTEN, OLD_S),
            Claimed(Verdict.MINE),
        ]
        assert a.holds("old")
        assert (a.may_have_forgotten(OLD_S), a.may_have_forgotten(LATER_S)) == (True, False)
        assert not a.memory.is_lost


@pytest.mark.asyncio
async def test_after_a_loss_old_ids_are_held_until_every_owner_has_told_its_claims_again(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await b.look()
        await a.claim([ask("runs"), ask("answered")])
        await a.done([("answered", Place("replies", 0, 1))])
        redis.flushdb()
        asks = [ask("runs", OLD_S), ask("answered", OLD_S), ask("new")]
        assert [c.verdict for c in await b.claim(asks)] == [Verdict.HELD, Verdict.HELD, Verdict.MINE]
        assert b.memory.is_lost
        assert await a.renew(["runs"]) == []
        age_memory(settings, redis, 2 * DELIVERY_S)
        assert [c.verdict for c in await b.claim(asks[:2])] == [Verdict.HELD, Verdict.FORGOTTEN]


@pytest.mark.asyncio
async def test_a_loss_is_known_although_one_who_knew_no_memory_came_first(settings, redis):
    async with claimants(settings, "a", "b") as ((a, b), _):
        await a.look()
        redis.flushdb()
        await asyncio.sleep(0.002)  # the server's clock has milliseconds
        await b.look()
        assert not b.memory.is_lost
        await a.look()
        assert a.memory.is_lost
        assert [c.verdict for c in await b.claim([ask("x", OLD_S)])] == [Verdict.HELD]


@pytest.mark.asyncio
async def test_a_forgotten_id_stays_one_when_its_claim_was_answered_by_silence_and_when_it_is_taken_over(
    settings, redis
):
    async with claimants(settings, "a", "a", "b") as ((a, same_life, b), _):
        await a.claim([ask("x", OLD_S)])
        assert [c.verdict for c in await same_life.claim([ask("x", OLD_S)])] == [Verdict.FORGOTTEN]
        expire(settings, redis, "x")
        (taken,) = await b.claim([ask("x", OLD_S)])
        assert taken.verdict is Verdict.TAKEOVER
        assert taken.since_s <= OLD_S
