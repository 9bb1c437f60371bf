import json

import msgspec
import pytest

from rampmeter import client
from rampmeter.client import Ask, Client, text_of
from tests.support.clock import FakeClock
from topics import codec
from topics.outcomes import Outcome
from topics.records import Chunk, Origin, Priority, Reply
from topics.settings import Settings


def test_ask_is_a_bare_openai_body_with_claims_in_headers():
    ask = Ask([{"role": "user", "content": "hi"}], model="m", max_tokens=5, stream=True, id="x", tenant="acme")
    assert json.loads(ask.body()) == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "m",
        "max_tokens": 5,
        "stream": True,
    }
    claims = codec.read_headers(ask.headers("replies"))
    event = codec.decode_event(ask.body(), claims, b"acme", Origin(topic="t", partition=0, offset=0), 1.0)
    assert (event.claims.id, event.claims.tenant, event.claims.reply_topic) == ("x", "acme", "replies")
    assert event.stream


def test_a_token_says_what_the_headers_and_the_topic_say():
    ask = Ask([], id="x", tenant="acme", priority=Priority.LOW, source="staging", user_tier="vip", path="/v1")
    claims = codec.read_headers(ask.headers("p.replies"))
    token = ask.token(b"value", "p.replies", 1_000.0, 60.0)
    assert (token.id, token.tenant, token.priority) == (claims.id, claims.tenant, "low")
    assert (token.user_tier, token.source, token.path) == (claims.user_tier, claims.source, claims.path)
    assert (token.reply_topic, token.sha256) == ("p.replies", codec.digest(b"value"))
    assert (token.iat, token.exp) == (1_000.0, 1_060.0)


def test_a_body_from_outside_can_claim_nothing():
    foreign = b'{"messages": [], "tenant": "mallory", "priority": "high", "id": "y", "temperature": 1e0}'
    ask = Ask([], verbatim=foreign, id="x", tenant="acme")
    event = codec.decode_event(
        ask.body(), codec.read_headers(ask.headers("replies")), b"acme", Origin(topic="t", partition=0, offset=0), 1.0
    )
    assert (event.claims.id, event.claims.tenant, event.claims.priority) == ("x", "acme", None)
    assert bytes(event.body) == foreign


def test_what_is_asked_is_not_shown():
    shown = repr(Ask([{"role": "user", "content": "SENTINEL"}], extra={"x": "SENTINEL"}, verbatim=b"SENTINEL"))
    assert "SENTINEL" not in shown


def test_what_is_not_given_stays_out_of_the_body():
    assert json.loads(Ask([]).body()) == {"messages": []}


def test_each_ask_has_an_id_of_its_own():
    assert Ask([]).id != Ask([]).id


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"choices":[{"delta":{"content":"a"}}]}', "a"),
        (b'{"choices":[{"delta":{"role":"assistant","content":null}}]}', ""),
        (b'{"choices":[],"usage":{}}', ""),
        (b"null", ""),
    ],
)
def test_text_of_chunks(data, text):
    assert text_of(Chunk(id="x", seq=0, data=msgspec.Raw(data))) == text


def test_text_of_a_reply():
    body = msgspec.Raw(b'{"choices":[{"message":{"role":"assistant","content":"hello"}}]}')
    assert text_of(Reply(id="x", outcome=Outcome.COMPLETED, body=body)) == "hello"
    assert text_of(Reply(id="x", outcome=Outcome.FAILED)) == ""


class Message:
    def __init__(self, answer, correlation, partition=0, offset=0):
        self._answer, self._correlation = answer, correlation
        self._partition, self._offset = partition, offset

    def topic(self):
        return "replies"

    def partition(self):
        return self._partition

    def offset(self):
        return self._offset

    def error(self):
        return None

    def key(self):
        return self._answer.id.encode()

    def headers(self):
        return codec.answer_headers(self._answer.id, codec.correlation_b64(self._correlation), None, None)

    def value(self):
        return codec.encode(self._answer)


class Broker:
    """Takes what is sent, and answers it after others of the same id on the same topic."""

    def __init__(self, *foreign):
        self.foreign, self.sent = list(foreign), []

    def send(self, letter, done):
        self.sent.append(dict(letter.headers)[codec.CORRELATION_HEADER])
        done(None)

    def assign(self, _places):
        return None

    def poll(self, _timeout_s):
        if self.foreign:
            return self.foreign.pop(0)
        return Message(Reply(id="x", outcome=Outcome.COMPLETED, tenant="acme"), self.sent[-1])


def test_the_answer_to_another_who_uses_the_same_id_is_not_taken_for_ours(monkeypatch):
    refusal = Reply(id="x", outcome=Outcome.REJECTED_INVALID, tenant="mallory")
    chunk = Chunk(id="x", seq=0, data=msgspec.Raw(b"{}"))
    broker = Broker(Message(refusal, None), Message(chunk, b"another"), Message(refusal, b"another"))
    monkeypatch.setattr(client, "Post", lambda _: broker)
    monkeypatch.setattr(client.clients, "reader", lambda _: broker)
    monkeypatch.setattr(client.positions, "ends", lambda *_: [])
    answers = list(Client(Settings(), FakeClock()).stream(Ask([], id="x", tenant="acme")))
    assert [(answer.tenant, answer.outcome) for answer in answers] == [("acme", Outcome.COMPLETED)]
