"""What a measured run leaves on a Redis of the user, against a real one."""

from rampmeter import private
from rampmeter.settings import StackSettings
from tests.support.ledger import emptied
from topics import clients, keys
from topics.settings import Redis, Topics


def test_only_the_keys_of_the_run_are_deleted(redis_server):
    url = emptied(redis_server, 12)
    run, users = (StackSettings(redis=Redis(url=url), topics=Topics(prefix=prefix)) for prefix in ("run-1.", ""))
    redis = clients.redis_sync(run)
    for settings in (run, users):
        redis.set(keys.of(settings).ledger(), "whole")
        redis.hset(keys.of(settings).bucket("tenant", "acme"), "level", 1)
    private.delete_keys(run)
    assert sorted(redis.keys()) == sorted(
        name.encode() for name in (keys.of(users).ledger(), keys.of(users).bucket("tenant", "acme"))
    )
