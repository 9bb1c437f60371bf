"""Who a request is from, through a real streams worker: one that wants tokens, and one that goes by topics."""

import json
import uuid

import pytest

from rampmeter.client import Ask, Client
from rampmeter.signing import Signer
from tests.support.streams_worker import Site, StreamsWorker, chat
from topics import admin, clients, codec
from topics.clock import SystemClock
from topics.outcomes import Outcome, Reason
from topics.records import Priority, Reply
from topics.settings import Topics

pytestmark = pytest.mark.integration

SENTINEL = "SENTINEL-a-prompt-nobody-may-log"
SECRET, RETIRED = "SECRET-of-more-than-thirty-two-bytes", "SECRET-that-was-taken-out-of-the-keys"
LANES = [f"lanes.default.{tier}.{length}" for tier in ("high", "medium", "low") for length in ("short", "long")]
WAIT_S = 30.0


class Place:
    """A site with one worker, whose settings differ from the default in how identity is proven."""

    def __init__(self, broker, redis_server, folder, identity, **topics):
        self.site = Site(broker, redis_server.url, 12 if topics else 11)
        for name, value in identity.items():
            self.site.env[f"RAMPMETER_IDENTITY__{name.upper()}"] = (
                value if isinstance(value, str) else json.dumps(value)
            )
        for name, value in topics.items():
            self.site.env[f"RAMPMETER_TOPICS__{name.upper()}"] = json.dumps(value)
        known = self.site.settings.topics
        self.settings = self.site.settings.model_copy(
            update={"topics": Topics(**{**known.model_dump(exclude_unset=True), **topics})}
        )
        admin.apply(self.settings)
        self.worker = StreamsWorker(self.site.env, folder / "streams.log").start()

    def refused(self, why):
        return self.worker.metric(f'rampmeter_streams_identity_refused_total{{why="{why}"}}')

    def close(self):
        assert self.worker.stop() == 0
        log = self.worker.log()
        self.site.close()
        assert "SECRET" not in log
        assert SENTINEL not in log


@pytest.fixture(scope="module")
def signed(broker, redis_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("signed")
    (folder / "key").write_text(SECRET)
    made = Place(broker, redis_server, folder, {"mode": "signed", "key_files": {"gateway": str(folder / "key")}})
    yield made
    made.close()


@pytest.fixture(scope="module")
def owned(broker, redis_server, tmp_path_factory):
    identity = {"mode": "topic", "reply_topics": {"acme": ["replies"]}}
    made = Place(broker, redis_server, tmp_path_factory.mktemp("owned"), identity, tenants=("acme", "big"))
    yield made
    made.close()


def asked(**fields):
    return Ask([{"role": "user", "content": SENTINEL}], id=f"r-{uuid.uuid4().hex}", tenant="acme", **fields)


def on_lane(messages, request_id):
    return next((m for m in messages if m.key() == request_id.encode()), None)


def answer_to(messages, origin):
    decoded = (codec.decode_answer(message.value()) for message in messages)
    return next((reply for reply in decoded if isinstance(reply, Reply) and reply.origin == origin), None)


def sealed(ask, settings, key_id="gateway", secret=SECRET):
    """Value and headers of a signed request."""
    value, reply_topic = ask.body(), settings.topic("replies")
    token = ask.token(value, reply_topic, SystemClock().wall_s(), 60.0)
    header = (codec.TOKEN_HEADER, Signer(key_id, secret, 60.0).seal(token).encode())
    return value, [*ask.headers(reply_topic), header]


def test_what_is_signed_goes_to_its_lane_under_the_tenant_and_class_of_the_token(signed):
    lanes, ask = signed.site.log(*LANES), asked(priority=Priority.HIGH, max_tokens=5)
    value, headers = sealed(ask, signed.settings)
    signed.site.send(value, "requests.high.short", key=b"conversation-7", headers=headers)
    message = lanes.until(lambda found: on_lane(found, ask.id))
    request = codec.decode_work(message.value()).request
    assert (request.tenant, request.priority, bytes(request.body)) == ("acme", "high", value)
    assert message.topic() == signed.settings.topic("lanes.default.high.short")
    assert SECRET.encode() not in message.value()
    assert codec.TOKEN_HEADER.encode() not in message.value()


ATTACKS = {
    "no token": ("missing", lambda ask, value, headers: (value, headers[:-1])),
    "a changed body": ("body", lambda ask, value, headers: (value.replace(b"SENTINEL", b"sentinel"), headers)),
    "another tenant": ("tenant", lambda ask, value, headers: (value, [*headers, ("rampmeter_tenant", b"evil")])),
    "another class": ("class", lambda ask, value, headers: (value, [*headers, ("rampmeter_priority", b"high")])),
    "another id": ("id", lambda ask, value, headers: (value, [*headers, (codec.ID_HEADER, b"another")])),
}


@pytest.mark.parametrize(("why", "forge"), ATTACKS.values(), ids=ATTACKS)
def test_what_is_forged_is_refused_and_counted_and_ends_no_request_of_another(signed, why, forge):
    replies, ask, before = signed.site.log("replies"), asked(), signed.refused(why)
    value, headers = forge(ask, *sealed(ask, signed.settings))
    origin = signed.site.send(value, headers=headers)
    reply = replies.until(lambda found: answer_to(found, origin))
    assert (reply.outcome, reply.reason) == (Outcome.REJECTED_INVALID, Reason.BAD_IDENTITY)
    assert (reply.id, reply.tenant) == (codec.fallback_id(origin), "anonymous")
    assert signed.refused(why) == before + 1
    genuine, lanes = sealed(ask, signed.settings), signed.site.log(*LANES)
    signed.site.send(genuine[0], headers=genuine[1])
    assert lanes.until(lambda found: on_lane(found, ask.id))


def test_a_record_that_cannot_be_read_ends_no_request_of_another(signed):
    replies, ask = signed.site.log("replies"), asked()
    origin = signed.site.send(b"{", headers=[(codec.ID_HEADER, ask.id.encode())])
    assert replies.until(lambda found: answer_to(found, origin)).id == codec.fallback_id(origin)


def test_the_client_learns_that_its_key_is_not_known(signed):
    with Client(signed.settings, SystemClock(), signer=Signer("retired", RETIRED, 60.0)) as client:
        reply = client.submit(asked()).result(WAIT_S)
    assert (reply.outcome, reply.reason) == (Outcome.REJECTED_INVALID, Reason.BAD_IDENTITY)
    assert "may have been retired" in reply.detail


def test_the_client_signs_what_it_sends(signed):
    lanes, ask = signed.site.log(*LANES), asked(priority=Priority.LOW, source="production")
    with Client(signed.settings, SystemClock(), signer=Signer("gateway", SECRET, 60.0)) as client:
        client.submit(ask)
    assert codec.decode_work(lanes.until(lambda found: on_lane(found, ask.id)).value()).request.tenant == "acme"


def test_a_tenant_is_who_owns_the_topic(owned):
    lanes, ask = owned.site.log(*LANES), asked()
    with Client(owned.settings, SystemClock()) as client:
        client.submit(ask)
    request = codec.decode_work(lanes.until(lambda found: on_lane(found, ask.id)).value()).request
    assert (request.tenant, request.origin.topic) == ("acme", owned.settings.topic("requests.acme.medium.short"))


NAMED = {
    "another tenant on a tenant's topic": ("requests.acme.medium.short", b"big"),
    "a tenant on a shared topic": ("requests.medium.short", b"acme"),
}


@pytest.mark.parametrize(("topic", "tenant"), NAMED.values(), ids=NAMED)
def test_a_name_that_the_topic_does_not_prove_is_refused_and_counted(owned, topic, tenant):
    replies, before = owned.site.log("replies"), owned.refused("tenant")
    origin = owned.site.send(chat(SENTINEL), topic, key=None, headers=[("rampmeter_tenant", tenant)])
    assert replies.until(lambda found: answer_to(found, origin)).reason is Reason.BAD_IDENTITY
    assert owned.refused("tenant") == before + 1


def test_a_request_that_is_dated_back_gets_the_brokers_time(owned):
    lanes, request_id = owned.site.log(*LANES), f"r-{uuid.uuid4().hex}"
    producer, now_s = clients.producer(owned.settings), SystemClock().wall_s()
    topic = owned.settings.topic("requests.acme.low.short")
    headers = [(codec.ID_HEADER, request_id.encode())]
    producer.produce(topic, chat(SENTINEL), headers=headers, timestamp=int((now_s - 3600) * 1000))
    assert producer.flush(WAIT_S) == 0
    arrived_s = codec.decode_work(lanes.until(lambda found: on_lane(found, request_id)).value()).request.arrived_s
    assert abs(arrived_s - now_s) < 60


def test_all_landing_topics_have_equally_many_partitions(owned):
    counts = admin.partition_counts(owned.settings)
    landing = [n for n in counts if n.startswith(owned.settings.topic("requests."))]
    assert len(landing) == 18
    assert {counts[name] for name in landing} == {2}
    assert admin.differences(owned.settings) == []
