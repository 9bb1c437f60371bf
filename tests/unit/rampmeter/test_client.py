import json

import msgspec
import pytest

from rampmeter.client import Ask, text_of
from topics import codec
from topics.outcomes import Outcome
from topics.records import Chunk, Origin, Priority, Reply


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
