import json

import pytest

from gpu_consumers.engine import Job
from gpu_consumers.engines.openai_request import MAX_DETAIL_CHARS, broken_stream, prepare, refusal, wait_s
from topics.errors import EngineError


def job(body, model="llama-3-8b"):
    return Job("r1", model, body, 10, None, rank=0, stream=False)


def test_every_other_field_passes_byte_for_byte():
    messages = '[ {"role":"user",  "content":"\\u00e9 1.0e0 \\/"} ]'
    body = f'{{"model":"llama-3-8b","messages":{messages},"temperature":1.10,"seed":12345678901234567890}}'.encode()

    sent = prepare(job(body), {}).body.decode()

    assert messages in sent
    assert '"temperature":1.10' in sent
    assert '"seed":12345678901234567890' in sent
    assert json.loads(sent) == {**json.loads(body), "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("given", "sent", "wants_usage"),
    [
        ({}, {"include_usage": True}, False),
        ({"stream": False}, {"include_usage": True}, False),
        ({"stream_options": None}, {"include_usage": True}, False),
        ({"stream_options": {"include_usage": True}}, {"include_usage": True}, True),
        ({"stream_options": {"include_usage": False, "x": 1}}, {"include_usage": True, "x": 1}, False),
    ],
)
def test_the_senders_stream_options_are_kept_beside_ours(given, sent, wants_usage):
    outgoing = prepare(job(json.dumps({"messages": [], **given}).encode()), {})

    fields = json.loads(outgoing.body)
    assert (fields["stream"], fields["stream_options"], outgoing.wants_usage) == (True, sent, wants_usage)


@pytest.mark.parametrize(
    ("given", "names", "sent"),
    [
        ({}, {}, "llama-3-8b"),
        ({"model": "as-sent"}, {}, "as-sent"),
        ({"model": "as-sent"}, {"llama-3-8b": "org/Llama"}, "org/Llama"),
        ({}, {"llama-3-8b": "org/Llama"}, "org/Llama"),
    ],
)
def test_the_model_is_written_only_when_missing_or_named_otherwise(given, names, sent):
    assert json.loads(prepare(job(json.dumps(given).encode()), names).body)["model"] == sent


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"stream_options": 3}', b'{"stream_options": [1]}'])
def test_a_body_that_is_no_request_is_refused_for_good(body):
    with pytest.raises(EngineError) as raised:
        prepare(job(body), {})
    assert not raised.value.retryable


SECRET = "My password is open-sesame, tell nobody."
REQUEST = json.dumps({"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5}).encode()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'{"error": {"message": "max_tokens is too large"}}', "max_tokens is too large"),
        (b'{"error": "busy"}', "busy"),
        (b'{"message": "old style", "code": 400}', "old style"),
        (b'{"detail": [{"loc": ["body"], "msg": "missing"}]}', '[{"loc":["body"],"msg":"missing"}]'),
        (b"<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        (b"", "no message"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"null", "null"),
    ],
)
def test_the_servers_words_are_told(answer, told):
    assert refusal(400, answer, REQUEST).detail == f"the server answered 400: {told}"


@pytest.mark.parametrize(
    "message",
    [
        SECRET,
        f"cannot parse '{SECRET}'",
        "near 'open-sesame, tell' at 17",
        "input was: My  password\n is open-sesame",
        "x" * 190 + SECRET,
    ],
)
def test_words_of_the_request_are_not_repeated(message):
    detail = refusal(400, json.dumps({"error": {"message": message}}).encode(), REQUEST).detail

    assert "sesame" not in detail
    assert "password" not in detail


def test_short_prompts_are_not_repeated_either():
    request = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "hunter2"}]}]}).encode()

    assert "hunter2" not in refusal(422, b'{"error": "bad content hunter2"}', request).detail
    assert "bad role user" in refusal(422, b'{"error": "bad role user"}', request).detail


def test_long_messages_are_cut():
    assert len(refusal(400, b"y" * 10_000, REQUEST).detail) <= MAX_DETAIL_CHARS + 40


@pytest.mark.parametrize(("code", "retryable"), [(400, False), (429, True), (500, True), (None, True), ("x", True)])
def test_an_error_within_a_stream_is_final_only_when_it_blames_the_request(code, retryable):
    error = broken_stream({"message": "went wrong", "code": code}, REQUEST)

    assert (error.retryable, error.detail) == (retryable, "the server broke off: went wrong")


@pytest.mark.parametrize(
    ("said", "expected_s"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.1),
        ("99999999999999999999", 999_999_999.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0.1),
        ("Tue, 14 Nov 9999999 22:13:10 GMT", 1.0),
        ("soon", 1.0),
        ("-3", 1.0),
        ("٣", 1.0),
        (None, 1.0),
    ],
)
def test_how_long_a_server_asks_to_wait(said, expected_s):
    assert wait_s(said, 1_700_000_000.0) == expected_s
