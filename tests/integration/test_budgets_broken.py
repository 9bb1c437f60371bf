"""A key of another type among the ledger's, and another deployment's beside them, against a real Redis."""

import pytest
from redis.exceptions import ResponseError

from streams.budgets import Ending, Paid
from tests.support.ledger import ask, charge, emptied, filled, levels, made, opened, pass_time, redis_of
from topics import keys
from topics.settings import Topics

pytestmark = pytest.mark.asyncio


@pytest.fixture
def settings(redis_server):
    return made(emptied(redis_server, 14))


def content(settings):
    """All that Redis holds."""
    redis = redis_of(settings)
    return {key: redis.dump(key) for key in redis.scan_iter()}


def ask_of_both(budgets):
    return budgets.reserve([ask("new"), ask("ill", tenant="blue")], {})


def settle_both(budgets):
    return budgets.settle([charge("a", 1.0), charge("b", 1.0, tenant="blue")])


def settle_what_nobody_reserved(budgets):
    return budgets.settle([charge("new", 1.0), charge("ill", 1.0, tenant="blue", partial=True)])


def end_both(budgets):
    return budgets.finish([Ending("a", ""), Ending("b", "")])


CALLS = [ask_of_both, settle_both, settle_what_nobody_reserved, end_both]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("level", [("tenant", "blue"), ("class", "high")])
async def test_a_call_that_meets_a_bucket_of_another_type_changes_nothing(settings, call, level):
    budgets = await filled(settings, "acme", "blue")
    await budgets.reserve([ask("a"), ask("b", tenant="blue")], {})
    redis_of(settings).delete(keys.of(settings).bucket(*level))
    redis_of(settings).set(keys.of(settings).bucket(*level), "not a bucket")
    before = content(settings)
    with pytest.raises(ResponseError):
        await call(budgets)
    assert content(settings) == before


async def test_a_bucket_of_another_type_keeps_no_lapsed_reservation_of_another_from_flowing_back(settings):
    budgets = await filled(settings, "acme", "blue", "calm")
    await budgets.reserve([ask("a"), ask("b", tenant="blue")], {})
    kept = redis_of(settings).hgetall(keys.of(settings).bucket("tenant", "blue"))
    pass_time(settings, settings.dedupe_window_s + 1)
    redis_of(settings).delete(keys.of(settings).bucket("tenant", "blue"))
    redis_of(settings).set(keys.of(settings).bucket("tenant", "blue"), "not a bucket")
    before = content(settings)
    with pytest.raises(ResponseError):
        await budgets.reserve([ask("c", tenant="calm")], {})
    assert content(settings) == before
    redis_of(settings).delete(keys.of(settings).bucket("tenant", "blue"))
    redis_of(settings).hset(keys.of(settings).bucket("tenant", "blue"), mapping=kept)
    await budgets.reserve([ask("c", tenant="calm")], {})
    assert levels(settings, "tenant:acme", "tenant:blue", "tenant:calm") == [100, 100, 90]


@pytest.mark.parametrize("name", ["request:ill", "shares:default"])
async def test_memories_and_shares_of_another_type_are_found_before_anything_is_written(settings, name):
    budgets = await filled(settings)
    mark = keys.of(settings).ledger()
    redis_of(settings).set(mark.removesuffix("ledger") + name, "something else")
    before = content(settings)
    with pytest.raises(ResponseError):
        await budgets.reserve([ask("new", pool="cpu"), ask("ill")], {})
    assert content(settings) == before


async def test_what_a_batch_changed_is_seen_by_the_rest_of_it(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 10.0, offset=1)], {})
    pass_time(settings, settings.dedupe_window_s + 1)
    again = ask("a", 10.0, offset=1)
    first, second = await budgets.reserve([again, again], {})
    assert (first.state, second.state) == ("reserved", "reserved")
    fresh = ask("b", 10.0, offset=2)
    first, second = await budgets.reserve([fresh, fresh], {})
    assert isinstance(first, Paid)
    assert second.state == "reserved"
    assert await budgets.finish([Ending("b", ""), Ending("b", "")]) == [True, False]


async def test_a_restored_bucket_is_forgotten_like_any_other(settings):
    budgets = opened(settings)
    await budgets.restore({"tenant:full": (1e9, 0.0), "tenant:empty": (0.0, 0.0)})
    redis, named, day_s = redis_of(settings), keys.of(settings), 86_400
    assert redis.ttl(named.bucket("tenant", "full")) == pytest.approx(day_s, abs=5)
    assert redis.ttl(named.bucket("tenant", "empty")) > day_s


async def test_two_deployments_on_one_redis_share_nothing(settings):
    other = settings.model_copy(update={"topics": Topics(prefix="b.")})
    budgets, elsewhere = await filled(settings), opened(other)
    await elsewhere.ping()
    assert elsewhere.is_lost
    await filled(other)
    before = content(settings)
    assert isinstance((await elsewhere.reserve([ask("a", 30.0)], {}))[0], Paid)
    changed = {key for key, value in content(settings).items() if before.get(key) != value}
    assert {key[: key.index(b"}") + 1] for key in changed} == {b"{b.rampmeter}"}
    assert (levels(settings, "tenant:acme"), levels(other, "tenant:acme")) == ([100], [70])
    assert isinstance((await budgets.reserve([ask("a", 50.0)], {}))[0], Paid)
    assert levels(other, "tenant:acme") == [70]
