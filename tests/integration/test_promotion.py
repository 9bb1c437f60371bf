"""The promoter against a real broker and Redis; time stands still and the fleet says what the test says."""

import time

import pytest
from confluent_kafka import KafkaException, TopicPartition

from autoscaler.settings import AutoscalerSettings
from rampmeter.hindsight import redecide
from rampmeter.hindsight.redecide import Books
from streams import metrics
from streams.apply import Writer
from streams.breaker import Breaker
from streams.budgets import Budgets
from streams.fleet import Fleet
from streams.limits import LiveLimits
from streams.outbox import Outbox
from streams.promote import Promoter
from streams.settings import StreamsSettings
from tests.support.builders import work
from tests.support.clock import FakeClock
from tests.support.streams_worker import TopicLog, wait_until
from topics import catalog, clients, codec, keys, offset_map
from topics.errors import ConfigError
from topics.records import Length, Priority, Tier
from topics.settings import load
from topics.telemetry import Telemetry

pytestmark = pytest.mark.asyncio
POOL = "default"
BUSY = {"queued_units": 500.0, "inflight_requests": 8}


def of(messages, name):
    return [message for message in messages if name in message.topic()]


class Rig:
    """Lanes of one pool, whatever fleet the test describes, and a promoter."""

    def __init__(self, **section):
        self.settings = load(StreamsSettings, streams={"aged_after_s": 30.0, **section})
        self.clock = FakeClock(time.time())
        self.fleet = Fleet(self.settings, self.clock)
        self.outbox, self.refuses = Outbox(self.settings, 10.0), False
        self._producer = clients.producer(self.settings)
        self.log = TopicLog(self.settings, "lanes.default.aged.short", "lanes.default.aged.long", "decisions")
        self._opened = []
        self.promoter = self.another()
        wait_until(self._is_readable, 20)

    def _is_readable(self):
        """Partitions of new topics have no leader for a moment, and a promoter skips a step then."""
        try:
            return self.promoter._lanes.spans() == []
        except KafkaException:
            return False

    def another(self):
        budgets = Budgets(
            clients.redis_async(self.settings),
            self.settings,
            Breaker(self.clock, self.settings.streams.degrade),
            LiveLimits(self.settings.streams),
        )
        writer = Writer(self.settings, self.clock, self.fleet, "streams-1")
        made = Promoter(self.settings, POOL, self.clock, budgets, writer, self.send, self.fleet)
        self._opened.append(made)
        return made

    async def send(self, records):
        if self.refuses:
            raise ConfigError(["topic lanes.default.aged.short takes no records"])
        assert await self.outbox.deliver(records) == []

    def put(self, request_id, age_s, tier=Tier.LOW, partition=0, length=Length.SHORT, units=100.0, value=None):
        fields = {"id": request_id, "priority": Priority(tier)} if tier is not Tier.AGED else {"id": request_id}
        value = value or codec.encode(work(fields, {"length": length, "cost_units": units}))
        self._producer.produce(
            catalog.lane(self.settings, POOL, tier, length), value, request_id.encode(), partition,
            timestamp=int((self.clock.wall_s() - age_s) * 1000),
        )  # fmt: skip
        assert self._producer.flush(10) == 0
        return value

    def commit(self, partition, offset, finished=(), tier=Tier.LOW):
        group = clients.consumer(self.settings, catalog.gpu_group(self.settings, POOL))
        metadata = offset_map.encode(offset, offset_map.runs_of(finished))
        topic = catalog.lane(self.settings, POOL, tier, Length.SHORT)
        group.commit(offsets=[TopicPartition(topic, partition, offset, metadata)], asynchronous=False)
        group.close()

    def owner(self, name, partitions, **fields):
        topics = [catalog.lane(self.settings, POOL, tier, length) for tier in Tier for length in Length]
        self.fleet.note(
            Telemetry(
                **{
                    "consumer": name, "pool": POOL, "state": "ready", "at_s": self.clock.wall_s(),
                    "lanes": dict.fromkeys(topics, partitions), **fields,
                }
            )
        )  # fmt: skip

    def copies(self, count):
        """What lies in the aged tier, once that many do."""
        return self.log.until(lambda messages: len(found := of(messages, ".aged.")) >= count and found)

    def copied(self, count):
        return sorted(m.key().decode() for m in self.copies(count))

    def promotions(self, count):
        found = self.log.until(lambda messages: len(found := of(messages, "decisions")) >= count and found)
        return [codec.decode_decision(m.value()) for m in found]

    def close(self):
        for promoter in self._opened:
            promoter.close()
        self.log.close()
        self.outbox.close()


@pytest.fixture
def rigged(settings):
    made = []

    def build(**section):
        made.append(Rig(**section))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


def skipped(reason):
    return metrics.UNPROMOTED.labels(POOL, reason)._value.get()


async def test_late_work_is_copied_once_byte_for_byte_with_its_class(rigged):
    rig = rigged()
    value = rig.put("late", 31)
    rig.put("young", 29)
    assert await rig.promoter.step() == 1
    assert await rig.promoter.step() == 0
    assert await rig.another().step() == 0
    assert [(m.topic().endswith("aged.short"), m.value()) for m in rig.copies(1)] == [(True, value)]
    assert codec.decode_work(rig.copies(1)[0].value()).request.priority is Priority.LOW


async def test_a_copy_that_its_topic_refuses_counts_as_no_promotion(rigged):
    rig = rigged()
    rig.put("late", 31)
    before, rig.refuses = metrics.PROMOTED.labels(POOL)._value.get(), True
    with pytest.raises(ConfigError):
        await rig.promoter.step()
    assert metrics.PROMOTED.labels(POOL)._value.get() == before


async def test_each_class_has_its_own_threshold(rigged):
    rig = rigged(aged_after_by_class={"high": 10.0, "low": 60.0})
    for tier in (Tier.HIGH, Tier.MEDIUM, Tier.LOW):
        for age_s in (75, 45, 15, 5):
            rig.put(f"{tier}-{age_s}", age_s, tier)
    await rig.promoter.step()
    assert rig.copied(6) == ["high-15", "high-45", "high-75", "low-75", "medium-45", "medium-75"]
    rig.clock.advance(20)
    await rig.promoter.step()
    assert {"low-45", "medium-15", "high-5"} <= set(rig.copied(9))


async def test_a_lane_is_promoted_oldest_first_over_its_partitions(rigged):
    rig = rigged(aged_backlog_records=3)
    for age_s, partition in ((90, 1), (80, 0), (70, 1), (60, 0), (50, 1)):
        rig.put(f"age-{age_s}", age_s, partition=partition)
    assert await rig.promoter.step() == 3
    assert rig.copied(3) == ["age-70", "age-80", "age-90"]


async def test_what_is_finished_or_claimed_is_not_copied(rigged):
    rig = rigged()
    before = skipped("claimed")
    for n in range(5):
        rig.put(f"n{n}", 60)
    rig.commit(0, 1, finished=[2])
    clients.redis_sync(rig.settings).hset(keys.of(rig.settings).claim("n3"), "state", "running")
    assert await rig.promoter.step() == 2
    assert rig.copied(2) == ["n1", "n4"]
    assert skipped("claimed") - before == 1


async def test_copies_beyond_a_flood_of_claimed_work_are_made_in_the_same_step(rigged):
    rig = rigged(aged_backlog_records=4)
    redis = clients.redis_sync(rig.settings)
    for n in range(20):
        rig.put(f"claimed-{n}", 60)
        redis.hset(keys.of(rig.settings).claim(f"claimed-{n}"), "state", "running")
    rig.put("waiting", 50)
    assert await rig.promoter.step() == 1
    assert rig.copied(1) == ["waiting"]


async def test_no_more_copies_wait_than_the_record_cap(rigged):
    rig = rigged(aged_backlog_records=3)
    rig.put("earlier", 5, Tier.AGED)
    for n in range(5):
        rig.put(f"n{n}", 60)
    before = skipped("record_cap")
    assert await rig.promoter.step() == 2
    assert await rig.promoter.step() == 0
    assert skipped("record_cap") - before >= 1
    rig.commit(0, 1, tier=Tier.AGED)
    assert await rig.promoter.step() == 1


async def test_a_busy_fleet_is_given_no_more_than_its_share_of_dispatched_cost(rigged):
    rig = rigged()
    for n in range(30):
        rig.put(f"n{n:02}", 60 - n)
    rig.owner("a", [0, 1], dispatched_units_total=0.0, **BUSY)
    before = skipped("cost_cap")
    assert await rig.promoter.step() == 0
    assert skipped("cost_cap") - before == 1
    rig.owner("a", [0, 1], dispatched_units_total=2500.0, **BUSY)
    assert await rig.promoter.step() == 3  # 250 units, and over it by a part of one request
    assert await rig.promoter.step() == 0
    rig.owner("a", [0, 1], dispatched_units_total=5000.0, **BUSY)
    assert await rig.promoter.step() == 2


@pytest.mark.parametrize("fields", [{}, {"state": "gone"}], ids=["nothing waits", "no telemetry"])
async def test_idle_or_unknown_consumers_are_given_all_that_fits(rigged, fields):
    rig = rigged()
    rig.owner("a", [0, 1], **fields)
    for n in range(10):
        rig.put(f"n{n}", 60)
    assert await rig.promoter.step() == 10


async def test_a_flood_of_one_class_leaves_the_others_their_part(rigged):
    rig = rigged(aged_backlog_records=6)
    for n in range(12):
        rig.put(f"high-{n:02}", 90, Tier.HIGH)
    for n in range(12):
        rig.put(f"low-{n:02}", 40)
    assert await rig.promoter.step() == 6
    assert [name.partition("-")[0] for name in rig.copied(6)] == ["high"] * 3 + ["low"] * 3


async def test_no_copy_is_made_where_the_lane_serves_sooner(rigged):
    rig = rigged(aged_backlog_records=1)
    rig.owner("a", [0], capacity_units_per_s=1000.0, dispatched_units_total=0.0, finished_units_total=0.0, **BUSY)
    rig.owner("b", [1], capacity_units_per_s=1000.0, **BUSY)
    rig.owner("a", [0], capacity_units_per_s=1000.0, dispatched_units_total=90_000.0, **BUSY)
    for n in range(12):
        rig.put(f"n{n:02}", 60 - n, Tier.HIGH)
    assert await rig.promoter.step() == 0  # the first look only learns what was dispatched
    rig.owner("a", [0], capacity_units_per_s=1000.0, dispatched_units_total=180_000.0, **BUSY)
    before = skipped("not_sooner")
    assert await rig.promoter.step() == 1
    assert skipped("not_sooner") - before >= 1
    # The lane has 0.9 of the rate and the aged one 0.1: from the fifth on of one partition, a copy is sooner.
    assert rig.copied(1) == ["n05"]
    for partition in (0, 1):
        rig.commit(partition, 1, tier=Tier.AGED)
    assert await rig.promoter.step() == 1
    assert rig.copied(2) == ["n05", "n06"]


async def test_before_an_owner_that_is_ill_age_alone_counts_and_the_copy_goes_to_a_healthy_one(rigged):
    rig = rigged()
    rig.owner("ill", [0], capacity_units_per_s=1000.0, gpu_temperature_c=99.0)
    rig.owner("well", [1], capacity_units_per_s=1000.0)
    for n in range(4):
        rig.put(f"n{n}", 60, Tier.HIGH)
    assert await rig.promoter.step() == 4
    assert {m.partition() for m in rig.copies(4)} == {1}


async def test_a_promotion_is_logged_with_inputs_that_give_the_same_decision_again(rigged):
    rig = rigged()
    rig.owner("a", [0, 1], capacity_units_per_s=1000.0)
    for n in range(30):
        rig.put(f"n{n}", 45)
    promoted = await rig.promoter.step()
    assert promoted >= 1
    for decision in rig.promotions(promoted):
        assert (decision.stage, decision.verdict) == ("promotion", "promote")
        assert decision.inputs["age_s"] == pytest.approx(45, abs=0.01)
        assert decision.inputs["lane"] == "low.short"
        assert {"lane_wait_s", "aged_wait_s", "drawn"} <= set(decision.inputs)
        assert redecide.differences(decision, Books(rig.settings, AutoscalerSettings())) == []


async def test_a_record_that_nobody_can_read_does_not_hold_the_others_up(rigged):
    rig = rigged()
    rig.put("garbage", 60, value=b"\xff")
    rig.put("good", 50)
    assert await rig.promoter.step() == 1
    assert rig.copied(1) == ["good"]


async def test_a_lane_longer_than_a_read_is_promoted_in_full(rigged):
    rig = rigged()
    for n in range(100):
        rig.put(f"n{n:03}", 60, partition=n % 2)
    while await rig.promoter.step():
        pass
    assert len(rig.copied(100)) == 100
