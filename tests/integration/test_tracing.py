"""One trace through all processes, as a real collector receives it."""

import json
import secrets

import pytest

from tests.support import command, whole
from tests.support.collector import Collector
from tests.support.streams_worker import chat, wait_until
from topics import codec

CANARY = "CANARY-prompt-that-no-span-holds"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def collector():
    with Collector() as made:
        yield made


@pytest.fixture(scope="module")
def site(broker, redis_server, collector, tmp_path_factory):
    env = {"RAMPMETER_TRACING__ENDPOINT": collector.url, "RAMPMETER_TRACING__EXPORT_EVERY_S": "0.1"}
    folder = tmp_path_factory.mktemp("tracing")
    with whole.running(broker, redis_server.url, folder, env=env, poor_units_per_s=30.0, max_deferral_s=10) as made:
        made.replies = made.log("replies", "usage")
        yield made


class Sender:
    """A service that has a trace of its own."""

    def __init__(self):
        self.trace, self.span = secrets.token_hex(16), secrets.token_hex(8)
        self.traceparent = f"00-{self.trace}-{self.span}-01"

    def headers(self, request_id):
        said = {"rampmeter_id": request_id, "traceparent": self.traceparent, "tracestate": "sender=1"}
        return [(name, value.encode()) for name, value in said.items()]


def ask(site, sender, request_id, tenant="acme", **body):
    value = json.dumps({"tenant": tenant, "body": json.loads(chat(CANARY, **{"max_tokens": 20, **body}))})
    site.send(value.encode(), headers=sender.headers(request_id))


def record_of(site, request_id, topic, decode):
    """The record of a request that ends it there."""

    def found(messages):
        mine = [m for m in messages if m.topic().endswith(topic) and decode(m.value()).id == request_id]
        return [message for message in mine if getattr(decode(message.value()), "outcome", None)]

    return site.replies.until(found)[0]


def trace_of(collector, sender, *names):
    """The spans of a trace by name, once those named are there."""
    wait_until(
        lambda: set(names) <= collector.trace(sender.trace).keys(), WAIT_S, lambda: collector.trace(sender.trace).keys()
    )
    return collector.trace(sender.trace)


def linked(collector, span):
    """Batches that link to a span."""
    return [one for one in collector.spans if (span.trace, span.id) in one.links]


def test_a_request_with_a_trace_is_one_trace_through_all_processes(site, collector):
    sender, topic = Sender(), site.settings.topic
    ask(site, sender, "traced-1", stream=True)
    reply = record_of(site, "traced-1", "replies", codec.decode_answer)
    usage = record_of(site, "traced-1", "usage", codec.decode_usage)
    asked, lane = f"process {topic('requests.medium.short')}", f"process {topic('lanes.default.medium.short')}"
    sent, run = f"send {topic('replies')}", "chat llama-3-8b"
    spans = trace_of(collector, sender, asked, lane, sent, run)
    assert {name: span.parent for name, span in spans.items()} == {
        asked: sender.span, lane: spans[asked].id, run: spans[lane].id, sent: spans[lane].id,
    }  # fmt: skip
    assert {span.service for span in spans.values()} == {"rampmeter-streams", "rampmeter-gpu"}
    for record in (reply, usage):
        headers = dict(record.headers())
        assert headers["traceparent"].decode() == spans[sent].context
        assert headers["tracestate"] == b"sender=1"
    settled = f"process {topic('usage')}"
    wait_until(lambda: settled in [batch.name for batch in linked(collector, spans[sent])], WAIT_S)
    answer = codec.decode_answer(reply.value())
    engine = spans[run].attributes
    assert engine["gen_ai.request.model"] == "llama-3-8b"
    assert engine["gen_ai.usage.input_tokens"] == answer.tokens.prompt
    assert engine["gen_ai.usage.output_tokens"] == answer.tokens.output
    assert 0 < engine["gen_ai.response.time_to_first_chunk"] <= spans[run].end_s - spans[run].start_s
    assert spans[asked].attributes["rampmeter.verdict"] == "admit"
    assert spans[asked].attributes["messaging.kafka.offset"] == answer.origin.offset


def test_the_batches_of_a_request_link_to_it_and_its_attempt_to_its_batch(site, collector):
    senders = [Sender() for _ in range(3)]
    for number, sender in enumerate(senders):
        ask(site, sender, f"batched-{number}")
    asked = f"process {site.settings.topic('requests.medium.short')}"
    lane = f"process {site.settings.topic('lanes.default.medium.short')}"
    for sender in senders:
        spans = trace_of(collector, sender, asked, lane)
        wait_until(lambda span=spans[asked]: len(linked(collector, span)) == 2, WAIT_S)
        admitted, given = sorted(linked(collector, spans[asked]), key=lambda span: span.name, reverse=True)
        assert (admitted.name, given.name) == ("receive requests", "receive lanes.default")
        assert admitted.attributes["messaging.batch.message_count"] >= len(admitted.links) >= 1
        assert spans[lane].links == ((given.trace, given.id),)


def test_a_deferred_request_stays_in_its_trace_and_so_does_a_refused_one(site, collector):
    late, refused = Sender(), Sender()
    asked = f"process {site.settings.topic('requests.medium.short')}"
    ask(site, late, "late-1", tenant="poor", max_tokens=250)
    ask(site, refused, "refused-1", model="gpt-17")
    headers = dict(record_of(site, "refused-1", "replies", codec.decode_answer).headers())
    span = trace_of(collector, refused, asked)[asked]
    assert headers["traceparent"].decode() == span.context
    assert (span.parent, span.is_error, span.attributes["error.type"]) == (refused.span, True, "unknown_model")
    spans = trace_of(collector, late, asked, f"send {site.settings.topic('replies')}")
    looks = [one for one in collector.spans if (one.trace, one.name) == (late.trace, asked)]
    assert [look.attributes["rampmeter.verdict"] for look in looks][-1] == "admit"
    assert spans[asked].attributes["rampmeter.deferrals"] == len(looks) - 1 > 0


def test_the_door_and_the_command_begin_or_continue_a_trace(site, collector, tmp_path):
    sender = Sender()
    body = {"messages": [{"role": "user", "content": CANARY}], "max_tokens": 5}
    status, _, _ = site.door.call("POST", "/chat/completions", body, traceparent=sender.traceparent)
    assert status == 200
    sent, asked = (f"{verb} {site.settings.topic('requests.high.short')}" for verb in ("send", "process"))
    spans = trace_of(collector, sender, sent, asked)
    assert (spans[sent].service, spans[sent].parent, spans[asked].parent) == (
        "rampmeter-door", sender.span, spans[sent].id,
    )  # fmt: skip
    done = command.run("submit", CANARY, "--max-tokens", "5", cwd=tmp_path, env=site.env)
    assert done.returncode == 0, done.stderr
    (first,) = wait_until(lambda: [one for one in collector.spans if one.service == "rampmeter-submit"], WAIT_S)
    wait_until(lambda: "chat llama-3-8b" in collector.trace(first.trace), WAIT_S)
    assert first.parent == ""


def test_no_span_holds_a_prompt(site, collector):
    assert collector.bodies
    assert not any(CANARY.encode() in body for body in collector.bodies)
