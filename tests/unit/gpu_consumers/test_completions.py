import json

import pytest

from gpu_consumers.engines.completions import Assembly, chunk, usage_chunk, whole
from tests.support.builders import usage
from topics import codec
from topics.records import Tokens


def chunk_of(delta, finish_reason=None, index=0, **choice):
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason, **choice}]}


def assemble(*chunks):
    assembly = Assembly()
    for data in chunks:
        assembly.add(data)
    return json.loads(assembly.body())


def test_text_is_joined_and_the_role_is_not():
    body = assemble(
        {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m", "x": 1}
        | chunk_of({"role": "assistant", "content": None}),
        chunk_of({"role": "assistant", "content": "Hel"}),
        chunk_of({"content": "lo"}),
        chunk_of({}, "stop", stop_reason=None),
    )

    assert body == {
        "id": "c1", "object": "chat.completion", "created": 5, "model": "m", "x": 1,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    }  # fmt: skip


def test_tool_calls_are_put_together_by_index():
    body = assemble(
        chunk_of(
            {"tool_calls": [{"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": ""}}]}
        ),
        chunk_of({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chunk_of({"tool_calls": [{"index": 1, "id": "t2", "function": {"name": "g", "arguments": "{}"}}]}),
        chunk_of({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    )

    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "t2", "function": {"name": "g", "arguments": "{}"}},
    ]


@pytest.mark.parametrize("odd", [-5, 10**30, "many", 3.5, [], None])
def test_odd_counts_of_a_server_still_make_a_record_that_can_be_read(odd):
    assembly = Assembly()
    details = {"cached_tokens": odd}
    assembly.add({"usage": {"prompt_tokens": odd, "completion_tokens": odd, "prompt_tokens_details": details}})
    read = codec.decode_usage(codec.encode(usage(tokens=assembly.tokens)))
    assert read.tokens == assembly.tokens


def test_choices_and_log_probabilities_stay_apart():
    body = assemble(
        chunk_of({"content": "b"}, index=1, logprobs={"content": [{"token": "b"}]}),
        chunk_of({"content": "a"}, index=0),
        chunk_of({"content": "B"}, index=1, logprobs={"content": [{"token": "B"}]}),
    )

    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "bB"]
    assert body["choices"][1]["logprobs"] == {"content": [{"token": "b"}, {"token": "B"}]}


def test_a_token_is_told_from_a_role_and_from_counts():
    assembly = Assembly()
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    assert not assembly.add(chunk_of({"role": "assistant", "content": ""}))
    assert assembly.tokens is None
    assert assembly.add(chunk_of({"content": "x"}))
    assert assembly.add(chunk_of({"reasoning_content": "hm"}))
    assert not assembly.add(usage)
    assert assembly.tokens == Tokens(prompt=3, output=2)


@pytest.mark.parametrize(
    ("details", "cached"),
    [(None, 0), ({}, 0), ({"cached_tokens": None}, 0), ({"cached_tokens": 64}, 64), ({"cached_tokens": 900}, 100)],
)
def test_cached_prompt_tokens_are_read_and_never_more_than_the_prompts(details, cached):
    assembly = Assembly()
    usage = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": details}
    assembly.add({"choices": [], "usage": usage})
    assert assembly.tokens == Tokens(prompt=100, output=2, cached=cached)


def test_our_own_chunks_join_to_our_own_whole():
    tokens = Tokens(prompt=1, output=2)
    parts = [
        chunk("a", "m", 1.0, {"role": "assistant", "content": "x"}),
        chunk("a", "m", 1.0, {"content": "y"}, "stop"),
    ]
    joined = assemble(*map(json.loads, parts))
    made = json.loads(whole("a", "m", 1.0, "xy", "stop", tokens))

    assert (joined["id"], joined["model"]) == (made["id"], made["model"])
    assert joined["choices"][0]["message"] == made["choices"][0]["message"]


def test_usage_tells_cached_tokens_where_there_are_any():
    tokens = Tokens(prompt=10, output=2, cached=8)
    ended = json.loads(usage_chunk("r1", "m", 5.0, tokens))
    assert (ended["choices"], ended["object"], ended["id"]) == ([], "chat.completion.chunk", "chatcmpl-r1")
    assert ended["usage"] == json.loads(whole("r1", "m", 5.0, "x", "stop", tokens))["usage"]
    assert ended["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    plain = json.loads(whole("r1", "m", 5.0, "x", "stop", Tokens(prompt=10, output=2)))["usage"]
    assert plain == {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
