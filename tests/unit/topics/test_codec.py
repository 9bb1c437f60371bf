import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import work
from topics import codec, trace_context
from topics.errors import DecodeError
from topics.outcomes import Reason
from topics.records import Length, Origin, Priority, Tier

ORIGIN = Origin(topic="requests.high.short", partition=1, offset=7)
MESSAGES = b'"messages":[{"role":"user","content":"hello"}]'
BARE = b"{" + MESSAGES + b"}"


def decode(value, headers=(), key=None):
    return codec.decode_event(value, codec.read_headers(headers), key, ORIGIN, 5.0)


def test_a_bare_openai_body_is_an_event():
    event = decode(BARE, key=b"acme")
    assert (event.claims.tenant, event.claims.id, event.stream) == ("acme", None, False)
    assert bytes(event.body) == BARE


def test_the_fields_of_an_envelope_are_claims():
    fields = {
        "id": "r1", "tenant": "acme", "user_tier": "pro", "source": "staging", "path": "/v1", "priority": "low",
        "deadline_s": 99.5, "reply_topic": "replies.a", "stream": True,
    }  # fmt: skip
    event = decode(json.dumps({**fields, "body": json.loads(BARE)}).encode())
    assert {name: getattr(event.claims, name) for name in fields if name != "stream"} == {
        name: value for name, value in fields.items() if name != "stream"
    }
    assert event.stream


def test_the_envelope_wins_over_headers_and_headers_over_the_key():
    headers = [("rampmeter_tenant", b"header"), ("rampmeter_id", b"h1")]
    wrapped = b'{"tenant":"envelope","body":' + BARE + b"}"
    assert decode(wrapped, headers, b"key").claims.tenant == "envelope"
    assert decode(wrapped, headers, b"key").claims.id == "h1"
    assert decode(BARE, headers, b"key").claims.tenant == "header"


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"two words", b"x" * 129])
def test_a_key_that_is_no_name_is_no_tenant(key):
    assert decode(BARE, key=key).claims.tenant is None


@pytest.mark.parametrize(
    "field", [b'"priority":3', b'"id":7', b'"tenant":[]', b'"source":{}', b'"stream":null', b'"deadline_s":"soon"']
)
def test_a_bare_body_may_hold_any_other_field_of_its_own(field):
    event = decode(b"{" + field + b"," + MESSAGES + b"}")
    assert (event.claims.priority, event.claims.id, event.claims.tenant, event.claims.deadline_s) == (None,) * 4


def test_a_tenant_that_only_the_key_names_is_marked_as_such():
    wrapped = b'{"tenant":"acme","body":' + BARE + b"}"
    named = [("rampmeter_tenant", b"acme")]
    marked = [(BARE, (), b"acme"), (BARE, [("rampmeter_tenant", b"")], b"acme"), (BARE, (), None)]
    assert [decode(value, headers, key).claims.tenant_is_key for value, headers, key in marked] == [True] * 3
    plain = [(BARE, named, b"acme"), (wrapped, (), b"acme"), (wrapped, (), None)]
    assert [decode(value, headers, key).claims.tenant_is_key for value, headers, key in plain] == [False] * 3


def test_path_and_token_are_read_from_headers_and_the_token_is_not_shown():
    claims = codec.read_headers([("rampmeter_path", b"/v1/chat"), ("rampmeter_token", b"SENTINEL")])
    assert (claims.path, claims.token) == ("/v1/chat", "SENTINEL")
    assert "SENTINEL" not in repr(decode(BARE, [("rampmeter_token", b"SENTINEL")]))


def test_a_body_or_envelope_holds_no_token():
    wrapped = b'{"token":"t","rampmeter_token":"t","body":' + BARE + b"}"
    assert decode(wrapped).claims.token is None


BODIES = {
    "inner whitespace": b'{ "messages" :\t[ {"role":"user",\n "content" : "a" } ] }',
    "unicode escapes": b'{"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00 \\/ caf\xc3\xa9"}]}',
    "unknown fields": b'{"x":{"y":[1,2.50,1e3,true,null]},"messages":[],"temperature":0.10}',
    "duplicate names": b'{"messages":[],"a":1,"a":2}',
    "tools and parts": b'{"messages":[{"content":[{"type":"text","text":"hi"}],"tool_calls":[{}]}],"tools":[]}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "envelope"])
def test_the_body_goes_through_byte_for_byte(body, wrap):
    event = decode(b'{"id":"r1", "body": ' + body + b" }" if wrap else body)
    assert bytes(event.body) == body
    lane = codec.encode(work({"body": event.body}))
    assert bytes(codec.decode_work(lane).request.body) == body
    again = codec.decode_work(codec.encode(codec.decode_work(lane)))
    assert bytes(again.request.body) == body


UNDECODABLE = {
    "no value": (None, Reason.EMPTY_VALUE),
    "empty": (b"", Reason.EMPTY_VALUE),
    "bytes": (b"\x00\x01\xfe", Reason.UNDECODABLE),
    "text": (b"hello", Reason.UNDECODABLE),
    "cut off": (BARE[:-1], Reason.UNDECODABLE),
    "trailing": (BARE + b"x", Reason.UNDECODABLE),
    "byte order mark": (b"\xef\xbb\xbf" + BARE, Reason.UNDECODABLE),
    "utf-16": (BARE.decode().encode("utf-16"), Reason.UNDECODABLE),
    "not utf-8 in the text": (b'{"messages":[{"content":"\xff"}]}', Reason.UNDECODABLE),
    "half a surrogate pair": (b'{"messages":[{"content":"\\ud800"}]}', Reason.UNDECODABLE),
    "not a number": (b'{"messages":[],"temperature":NaN}', Reason.UNDECODABLE),
    "nested without end": (b'{"messages":' + b"[" * 100_000, Reason.UNDECODABLE),
    "an array": (b"[]", Reason.WRONG_SHAPE),
    "null": (b"null", Reason.WRONG_SHAPE),
    "a number": (b"1", Reason.WRONG_SHAPE),
    "an empty object": (b"{}", Reason.WRONG_SHAPE),
    "null body": (b'{"body":null}', Reason.WRONG_SHAPE),
    "body as text": (b'{"body":"{}"}', Reason.WRONG_SHAPE),
    "body without messages": (b'{"body":{}}', Reason.WRONG_SHAPE),
    "messages as text": (b'{"messages":"hello"}', Reason.WRONG_SHAPE),
    "message as text": (b'{"messages":["hello"]}', Reason.WRONG_SHAPE),
    "max_tokens as text": (b'{"messages":[],"max_tokens":"9"}', Reason.WRONG_SHAPE),
    "max_tokens as fraction": (b'{"messages":[],"max_tokens":1.5}', Reason.WRONG_SHAPE),
    "envelope with a number for an id": (b'{"id":7,"body":' + BARE + b"}", Reason.WRONG_SHAPE),
}


@pytest.mark.parametrize(("value", "reason"), UNDECODABLE.values(), ids=UNDECODABLE)
def test_what_cannot_be_read_has_a_reason(value, reason):
    with pytest.raises(DecodeError) as caught:
        decode(value)
    assert caught.value.reason is reason


def test_an_error_names_the_place_and_never_the_content():
    with pytest.raises(DecodeError, match=r"\$\.max_tokens") as caught:
        decode(b'{"messages":[{"role":"user","content":"SENTINEL"}],"max_tokens":"SENTINEL"}')
    assert "SENTINEL" not in str(caught.value)


def deepest():
    """The deepest body that is read at all."""
    low, high = 1, 100_000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            decode(nested(middle))
        except DecodeError as error:
            assert error.reason is Reason.UNDECODABLE  # noqa: PT017 - searched for, not expected
            high = middle
        else:
            low = middle
    return low


def nested(depth):
    return b'{"messages":[{"content":[{"type":"x","y":' + b"[" * depth + b"]" * depth + b"}]}]}"


def test_a_body_that_is_read_at_all_can_be_read_in_our_records_and_further_down_a_stack():
    depth = deepest()
    assert depth > 256
    event = decode(nested(depth))

    def down(frames):
        if frames:
            return down(frames - 1)
        assert event.chat.media_parts() == 0
        assert event.chat.text_bytes() == 2 * depth
        return codec.decode_work(codec.encode(work({"body": event.body})))

    assert bytes(down(60).request.body) == nested(depth)


def test_spring_headers_are_understood_and_answered_in_kind():
    binary = bytes(range(240, 256))
    claims = codec.read_headers(
        [
            ("kafka_replyTopic", b"replies.x"),
            ("kafka_replyPartition", (3).to_bytes(4, "big")),
            ("kafka_correlationId", binary),
        ]
    )
    assert (claims.reply_topic, claims.reply_partition, claims.correlation) == ("replies.x", 3, binary)
    text = codec.correlation_b64(claims.correlation)
    assert ("kafka_correlationId", binary) in codec.answer_headers("r1", text, claims.correlation_header, None)


def test_binary_cloud_events_headers_are_understood():
    headers = [("ce_specversion", b"1.0"), ("ce_type", b"x"), ("ce_source", b"/mine"), ("ce_id", b"e-1")]
    claims = codec.read_headers(headers)
    assert (claims.id, claims.source, claims.problem) == ("e-1", None, None)


@pytest.mark.parametrize(
    ("value", "partition"), [(b"0", 0), (b"12", 12), (b"\x00\x00\x00\x02", 2), (b"\xff\xff\xff\xff", -1)]
)
def test_a_reply_partition_is_four_bytes_or_digits(value, partition):
    assert codec.read_headers([("kafka_replyPartition", value)]).reply_partition == partition


FAULTS = {
    "not utf-8": [("rampmeter_id", b"\xff\xfe")],
    "deadline in words": [("rampmeter_deadline_s", b"soon")],
    "partition in words": [("kafka_replyPartition", b"first")],
    "partition of three bytes": [("kafka_replyPartition", b"\x00\x00\x01")],
    "empty partition": [("rampmeter_reply_partition", b"")],
    "too many": [(f"x{n}", b"") for n in range(codec.MAX_HEADERS + 1)],
    "too large": [("x", b"y" * codec.MAX_HEADER_BYTES)],
}


@pytest.mark.parametrize("headers", FAULTS.values(), ids=FAULTS)
def test_a_faulty_header_is_a_problem_that_does_not_repeat_its_value(headers):
    problem = codec.read_headers(headers).problem
    assert problem is not None
    assert "soon" not in problem


def test_the_first_fault_is_the_one_reported():
    assert "rampmeter_id" in codec.read_headers([*FAULTS["not utf-8"], *FAULTS["deadline in words"]]).problem


def test_the_last_of_a_repeated_header_wins():
    assert codec.read_headers([("rampmeter_id", b"a"), ("rampmeter_id", b"b")]).id == "b"


def test_unknown_headers_null_values_and_invalid_traces_are_ignored():
    claims = codec.read_headers([("x", b"\xff"), ("rampmeter_source", None), ("traceparent", b"00-zz")])
    assert (claims.problem, claims.traceparent) == (None, None)


TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_a_valid_trace_is_kept_and_answered():
    sent = [("traceparent", TRACEPARENT.encode()), ("tracestate", b"vendor=t61rcWkgMzE, other@x=1")]
    trace = trace_context.of(codec.read_headers(sent))
    assert trace == (TRACEPARENT, "vendor=t61rcWkgMzE, other@x=1")
    assert codec.answer_headers("r1", None, None, trace)[-2:] == sent


@pytest.mark.parametrize(
    "state", ["", "no-value", "UPPER=1", "a=1,", "a=\u00e9", "a=1\r\nx: y", "a=" + "x" * 512, ",".join(["a=1"] * 33)]
)
def test_an_invalid_trace_state_is_ignored_and_its_parent_is_kept(state):
    claims = codec.read_headers([("traceparent", TRACEPARENT.encode()), ("tracestate", state.encode())])
    assert (claims.problem, trace_context.of(claims)) == (None, (TRACEPARENT, None))


def test_a_trace_state_without_its_parent_says_nothing():
    assert trace_context.of(codec.read_headers([("tracestate", b"a=1")])) is None


def test_max_completion_tokens_wins_over_max_tokens():
    event = decode(b'{"max_tokens":5,"max_completion_tokens":7,' + MESSAGES + b"}")
    assert event.chat.output_limit() == 7


def test_a_record_without_an_id_gets_the_same_one_on_every_delivery():
    assert codec.fallback_id(ORIGIN) == "requests.high.short-1-7"
    assert codec.NAME.fullmatch(codec.fallback_id(ORIGIN))


def test_old_readers_ignore_fields_they_do_not_know():
    value = json.loads(codec.encode(work()))
    assert codec.decode_work(json.dumps({**value, "new": 1}).encode()) == work()


def test_classes_and_tiers_share_their_words():
    assert {*Priority} < {*Tier}
    assert {*Length} == {"short", "long"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["messages", "body", "id", "tenant", "max_tokens", "n", "stream", "model", "deadline_s"])
VALUES = (
    st.binary(max_size=200)
    | st.dictionaries(FIELDS, JSON, max_size=6).map(lambda value: json.dumps(value).encode())
    | st.tuples(st.binary(max_size=3), st.integers(0, len(BARE))).map(
        lambda cut: BARE[: cut[1]] + cut[0] + BARE[cut[1] :]
    )
)
HEADERS = st.lists(
    st.tuples(st.sampled_from([*codec._TEXT_HEADERS, *codec._PARTITION_HEADERS, "x"]), st.binary(max_size=9))
)


@settings(max_examples=400, deadline=None)
@given(value=VALUES, headers=HEADERS, key=st.none() | st.binary(max_size=9))
def test_any_record_is_an_event_or_a_decode_error(value, headers, key):
    try:
        event = decode(value, headers, key)
    except DecodeError:
        return
    assert codec.decode_work(codec.encode(work({"body": event.body}))) is not None
    json.loads(bytes(event.body))
    assert isinstance(event.body, msgspec.Raw)
