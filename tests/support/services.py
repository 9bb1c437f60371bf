"""Fixtures of real services.  One broker and one Redis serve the run; each test has its own topics and database."""

import itertools
import json
import os
import uuid

import pytest

from tests.support import started
from tests.support.gpu import Rig
from tests.support.openai_server import Hosted
from topics import admin, clients
from topics.local_broker import LocalBroker
from topics.settings import ENV_PREFIX, Settings, load

DATABASES = 16
HEAP_BYTES = 768 * 1024**2
"""Of the broker: each test leaves topics, groups and members that it forgets only after minutes."""
_turn = itertools.count()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="module")
def _no_process_left():
    yield
    started.end_all()


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A running LocalBroker."""
    with LocalBroker(tmp_path_factory.mktemp("broker"), heap_bytes=HEAP_BYTES) as running:
        yield running


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A running LocalRedis."""
    from topics.local_redis import LocalRedis

    with LocalRedis(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def stack_env(broker, redis_server):
    """Variables that point any of our processes at this test's own topics (not yet created) and database."""
    url = redis_server.url.rsplit("/", 1)[0] if redis_server.url.count("/") > 2 else redis_server.url
    return {
        "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "RAMPMETER_REDIS__URL": f"{url}/{next(_turn) % DATABASES}",
        "RAMPMETER_TOPICS__PREFIX": f"t{uuid.uuid4().hex[:8]}.",
        "RAMPMETER_TOPICS__LANDING_PARTITIONS": "2",
        "RAMPMETER_TOPICS__REPLY_PARTITIONS": "2",
        "RAMPMETER_POOLS": json.dumps({"default": {"lane_partitions": 2}, "cpu": {"lane_partitions": 1}}),
    }


@pytest.fixture
def rig(settings, tmp_path):
    """Feeds the lanes of `settings`, starts GPU consumers on them, and ends those."""
    made = Rig(settings, tmp_path)
    yield made
    made.close()


GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Properties of a broker that can forbid topics."""


@pytest.fixture
def rig_on(stack_env, tmp_path, monkeypatch):
    """Makes the rig of this test's own topics on another broker, one that it may stop or whose topics it may forbid."""
    made = []

    def make(broker):
        for name, value in {**stack_env, "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers}.items():
            monkeypatch.setenv(name, value)
        settings = load(Settings)
        clients.redis_sync(settings).flushdb()
        admin.apply(settings)
        made.append(Rig(settings, tmp_path))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def settings(stack_env, monkeypatch):
    """Loaded settings of this test's own topics (created) and database (empty); its variables are set meanwhile."""
    for name, value in stack_env.items():
        monkeypatch.setenv(name, value)
    made = load(Settings)
    clients.redis_sync(made).flushdb()
    admin.apply(made)
    yield made
    mine = [name for name in admin.partition_counts(made) if name.startswith(made.topics.prefix)]
    if mine:
        clients.admin(made).delete_topics(mine)


@pytest.fixture
def hosted():
    """An OpenAI-compatible server that tests without a loop can use."""
    made = Hosted()
    yield made
    made.close()
