"""A send that the broker refuses for good: the record that led to it must stay uncommitted."""

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.streams_worker import Site, StreamsWorker, chat
from topics import clients

LANE = "lanes.default.medium.short"


@pytest.fixture
def site(broker, redis_server):
    made = Site(broker, redis_server.url, 5)
    yield made
    made.close()


def limit_bytes(site, limit):
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, site.settings.topic(LANE), incremental_configs=[entry])
    admin = clients.admin(site.settings)  # its futures end with it
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_a_lane_that_takes_no_records_ends_the_process_and_the_request_is_read_again(site, tmp_path):
    limit_bytes(site, 100)
    first = StreamsWorker(site.env, tmp_path / "first.log").start()
    site.send(chat(max_tokens=1), headers=[("rampmeter_id", b"stays")])
    assert first.process.wait(60) == 70
    assert "takes no records" in first.log()
    assert site.committed("requests.medium.short") == (0, 1)
    limit_bytes(site, 1_000_000)
    second = StreamsWorker(site.env, tmp_path / "second.log").start()
    site.log(LANE).until(lambda messages: [m for m in messages if m.key() == b"stays"])
    assert second.stop() == 0
