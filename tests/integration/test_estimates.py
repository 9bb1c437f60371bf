"""What is learned from usage: told on a topic, followed by every worker, kept over restarts and forgotten in time."""

import time
import uuid

import pytest

from streams.estimates import Estimates
from streams.settings import Streams, StreamsSettings
from tests.support import builders
from tests.support.streams_worker import Site, StreamsWorker, chat, send, steadily_written, wait_until
from topics import clients, codec
from topics.clock import SystemClock
from topics.notes import Estimate
from topics.outcomes import Outcome
from topics.records import Length, Tokens

LANES = [f"lanes.default.{tier}.{length}" for tier in ("high", "medium", "low") for length in ("short", "long")]
CHANGELOG = "rampmeter-streams-spend-changelog"


@pytest.fixture
def site(broker, redis_server):
    made = []

    def make(**streams):
        made.append(Site(broker, redis_server.url, 6, **streams))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def make_worker(tmp_path):
    made = []

    def make(env):
        made.append(StreamsWorker(env, tmp_path / f"worker{len(made)}.log"))
        return made[-1]

    yield make
    for worker in made:
        if worker.process is not None and worker.process.poll() is None:
            worker.kill()


def told(number, **fields):
    return Estimate(tenant=f"t{number}", model="llama-3-8b", template="", at_s=time.time(), samples=20, **fields)


def put(settings, *records):
    topic = settings.topic("estimates")
    producer, failed = clients.producer(settings), []

    def note(error, _):
        failed.extend([error] if error else [])

    for key, value in records:
        producer.produce(topic, value, key, partition=0, on_delivery=note)
    assert producer.flush(30) == 0
    assert failed == []


def record(number, **fields):
    return f"t{number}|llama-3-8b|".encode(), codec.encode(told(number, **fields))


@pytest.fixture
def follow(settings):
    made = []

    def start(**streams):
        loaded = StreamsSettings(kafka=settings.kafka, topics=settings.topics, streams=Streams(**streams))
        made.append(Estimates(loaded, SystemClock()))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def test_all_that_was_told_before_the_start_is_known_when_it_is_ready(settings, follow):
    put(
        settings, *[record(number, output_tokens=float(number)) for number in range(3000)], record(5, output_tokens=9.0)
    )
    estimates = follow()
    assert estimates.wait_ready(20)
    assert estimates.of("t2999", "llama-3-8b", "").output_tokens == 2999.0
    assert estimates.of("t5", "llama-3-8b", "").output_tokens == 9.0


def test_an_empty_topic_is_ready_too(follow):
    assert follow().wait_ready(20)


def test_it_is_ready_while_others_tell_more_without_a_pause(settings, follow, monkeypatch):
    def never_without_a_record(settings):
        return clients.consumer(settings, "reader", fetch_wait_max_ms=1000, enable_partition_eof=True)

    monkeypatch.setattr(clients, "reader", never_without_a_record)
    put(settings, record(1, output_tokens=7.0))
    with steadily_written(settings, "estimates", every_s=0.02) as writer:
        estimates = follow()
        assert estimates.wait_ready(10)
        assert writer.is_alive()
    assert estimates.of("t1", "llama-3-8b", "").output_tokens == 7.0


def test_what_is_told_later_arrives_and_garbage_or_a_deletion_stop_nothing(settings, follow):
    estimates = follow()
    assert estimates.wait_ready(20)
    key, value = record(1, output_tokens=7.0)
    put(settings, (key, value), record(2), (b"\xff", b"garbage"), (b"k", b"{}"), (b"\xff\xfe", None))
    wait_until(lambda: estimates.of("t2", "llama-3-8b", ""), 20)
    assert estimates.of("t1", "llama-3-8b", "").output_tokens == 7.0
    put(settings, (key, None), record(3))
    wait_until(lambda: estimates.of("t3", "llama-3-8b", ""), 20)
    assert estimates.of("t1", "llama-3-8b", "") is None


def test_no_more_kinds_are_known_than_the_settings_allow(settings, follow):
    put(settings, *[record(number) for number in range(200)])
    estimates = follow(history={"max_kinds": 10})
    assert estimates.wait_ready(20)
    assert [number for number in range(200) if estimates.of(f"t{number}", "llama-3-8b", "")] == list(range(190, 200))


def usages(template, count, output, tenant="acme"):
    """Records of the usage topic, all in one partition."""
    made = [
        builders.usage(
            id=f"u-{uuid.uuid4().hex}", tenant=tenant, template=template, tokens=Tokens(prompt=100, output=output),
            outcome=Outcome.COMPLETED, expected_prompt_tokens=25, service_s=3.0,
        )
        for _ in range(count)
    ]  # fmt: skip
    return [(codec.encode(usage), tenant.encode(), [], 0) for usage in made]


def new_id():
    return uuid.uuid4().hex.encode()


def placed(lanes, request_id):
    found = lanes.until(lambda messages: [m for m in messages if m.key() == request_id])
    return codec.decode_work(found[0].value())


def estimates_of(log, template):
    read = [codec.decode_estimate(message.value()) for message in log.poll()]
    return [estimate for estimate in read if estimate.template == template]


def test_a_worker_learns_what_a_kind_needs_and_its_successor_knows_it_and_goes_on(site, make_worker):
    place = site(long_cost_units=1e9)
    worker = make_worker(place.env).start()
    lanes, log = place.log(*LANES), place.log("estimates")

    def ask(request_id, **fields):
        place.send(chat(**fields), headers=[("rampmeter_id", request_id)])
        return placed(lanes, request_id)

    template = ask(b"first", max_tokens=5000).request.template
    send(place.settings, "usage", usages(template, 25, output=40))
    wait_until(lambda: estimates_of(log, template), 30)
    price = wait_until(lambda: (found := ask(new_id(), max_tokens=5000).price).service_s and found, 30)
    assert 40 <= price.expected_output_tokens <= 44
    assert price.length is Length.LONG, "its kind took 3 s"
    assert price.service_s == pytest.approx(3.0, rel=0.1)
    settled = place.log("decisions").until(
        lambda found: [d for m in found if (d := codec.decode_decision(m.value())).stage == "settlement"]
    )
    assert settled[0].inputs["real_units"] == pytest.approx(0.067 * 100 + 0.27 * 40)
    assert worker.stop() == 0
    successor = make_worker(place.env).start()
    assert 40 <= ask(b"third", max_tokens=5000).price.expected_output_tokens <= 44
    send(place.settings, "usage", usages(template, 25, output=4000))
    latest = wait_until(lambda: [e for e in estimates_of(log, template) if e.output_tokens > 100], 30)[-1]
    assert latest.samples == 50, "the windows of its predecessor came back from the changelog"
    assert successor.stop() == 0


@pytest.mark.slow
def test_kinds_beyond_the_limit_are_forgotten_in_the_table_and_in_its_changelog(site, make_worker):
    # One window of spending for the whole test: a minute's end would add a row.
    place = site(history={"max_kinds": 5}, spend_window_s=86_400)
    changelog = place.log(CHANGELOG)
    worker = make_worker(place.env).start()
    send(place.settings, "usage", [one for number in range(30) for one in usages(f"k{number}", 1, output=5)])
    changelog.until(lambda messages: len({m.key() for m in messages if m.value() is None}) == 25)
    assert worker.metric("rampmeter_streams_spend_rows") == 6.0, "five kinds and the spending of their tenant"
    assert worker.stop() == 0
    successor = make_worker(place.env).start()
    assert successor.metric("rampmeter_streams_spend_rows") == 6.0
    send(place.settings, "usage", usages("another", 1, output=5))
    changelog.until(lambda messages: len({m.key() for m in messages if m.value() is None}) == 26)
    assert successor.metric("rampmeter_streams_spend_rows") == 6.0
    assert successor.stop() == 0


@pytest.mark.slow
def test_a_worker_that_restarts_past_the_expiry_of_its_windows_five_times_has_an_empty_table(site, make_worker):
    place = site(spend_window_s=1, spend_kept_s=2, history={"window_s": 1, "kept_s": 2})
    changelog = place.log(CHANGELOG)
    for turn in range(5):
        worker = make_worker(place.env).start()
        records = [one for n in range(20) for one in usages("", 1, output=5, tenant=f"t{turn}-{n}")]
        send(place.settings, "usage", records)
        changelog.until(lambda messages, turn=turn: len({m.key() for m in messages if m.value()}) >= 40 * (turn + 1))
        assert worker.stop() == 0
    last = make_worker(place.env).start()
    wait_until(lambda: last.metric("rampmeter_streams_spend_rows") == 0.0, 20)
    assert last.stop() == 0
