import json

import pytest

from rampmeter import resubmission
from rampmeter.resubmission import LandingRecord
from tests.support.builders import body
from topics import codec
from topics.records import Origin

ORIGIN = Origin(topic="requests.medium.short", partition=0, offset=1)


def renewed(value, headers=(), *, keeps_deadline=True):
    return resubmission.renewed(
        LandingRecord(value, tuple(headers)), "new", "dead_letters[0]@7", keeps_deadline=keeps_deadline
    )


def read(landing, key=b"acme"):
    """As admission reads it."""
    return codec.decode_event(landing.value, codec.read_headers(landing.headers), key, ORIGIN, 0.0)


def test_the_id_is_new_and_the_same_for_each_replay_of_a_letter():
    assert resubmission.replay_id("r1", 7) == "r1~replay-7" == resubmission.replay_id("r1", 7)
    assert resubmission.replay_id("r1", 8) != resubmission.replay_id("r1", 7)


def test_a_replay_that_died_too_gets_an_id_no_longer_than_the_first():
    assert resubmission.replay_id("r1~replay-7", 123) == "r1~replay-123"


def test_the_longest_id_leaves_a_valid_one():
    made = resubmission.replay_id("x" * 128, 1234)
    assert codec.NAME.fullmatch(made)
    assert made.endswith("~replay-1234")


def test_a_bare_body_passes_byte_for_byte_under_the_new_id():
    value = b'{ "messages": [ {"role":"user","content":"h\\u00e9"} ], "id": "openai\'s own" }'
    made = renewed(value, [("rampmeter_id", b"old"), ("ce_id", b"old"), ("x-mine", b"\xff")])
    assert made.value == value
    assert ("x-mine", b"\xff") in made.headers
    assert read(made).claims.id == "new"


def test_an_envelope_gets_the_new_id_and_keeps_its_body_byte_for_byte():
    inner = b'{"messages":[ {"role":"user","content":"hi"}],"max_tokens" : 5}'
    made = renewed(b'{"id":"old","tenant":"acme","deadline_s":5e9,"body":' + inner + b"}", [("rampmeter_id", b"old")])
    event = read(made)
    assert (event.claims.id, event.claims.tenant, event.claims.deadline_s) == ("new", "acme", 5e9)
    assert bytes(memoryview(event.body)) == inner


def test_an_envelope_without_an_id_takes_the_new_one_from_the_header():
    assert read(renewed(json.dumps({"body": json.loads(body())}).encode())).claims.id == "new"


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[1]", b'{"body":', b'{"a":1}', b'{"body": {}}'])
def test_what_cannot_be_read_is_sent_as_it_is(value):
    made = renewed(value)
    assert made.value in (value, b'{"body":{}}')
    assert ("rampmeter_id", b"new") in made.headers


def test_the_header_names_the_dead_letter_once_also_after_a_second_replay():
    first = renewed(body())
    second = renewed(first.value, first.headers)
    assert [value for name, value in second.headers if name == resubmission.REPLAY_HEADER] == [b"dead_letters[0]@7"]
    assert resubmission.is_replay(second.headers)
    assert not resubmission.is_replay([("rampmeter_id", b"x")])


def test_the_deadline_goes_only_when_it_is_to_go():
    envelope = json.dumps({"deadline_s": 1.0, "body": json.loads(body())}).encode()
    for value, headers in ((envelope, []), (body(), [("rampmeter_deadline_s", b"1.0")])):
        assert read(renewed(value, headers)).claims.deadline_s == 1.0
        assert read(renewed(value, headers, keeps_deadline=False)).claims.deadline_s is None


@pytest.mark.parametrize(
    ("value", "headers", "expected"),
    [
        (body(), [], None),
        (body(), [("rampmeter_deadline_s", b"9.5")], 9.5),
        (body(), [("rampmeter_deadline_s", b"9.5"), ("rampmeter_deadline_s", b"10")], 10.0),
        (body(), [("rampmeter_deadline_s", b"soon")], None),
        (b'{"deadline_s": 4, "body": {}}', [("rampmeter_deadline_s", b"9.5")], 4.0),
        (b'{"deadline_s": null, "body": {}}', [], None),
        (b'{"deadline_s": 4, "messages": []}', [], None),
    ],
)
def test_the_deadline_that_counts_is_the_one_that_admission_reads(value, headers, expected):
    assert resubmission.deadline_s(LandingRecord(value, tuple(headers))) == expected


def test_headers_are_shown_as_text_but_for_secrets():
    shown = resubmission.readable([("a", b"\xff"), ("b", None), ("Authorization", b"Bearer x"), ("my_token", b"x")])
    assert shown == [("a", "\\xff"), ("b", ""), ("Authorization", "***"), ("my_token", "***")]
