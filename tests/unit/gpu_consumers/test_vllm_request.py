import json

import pytest

from gpu_consumers.engine import Job
from gpu_consumers.engines.vllm_request import limit, prepare, sampling
from topics.errors import EngineError

HELLO = {"role": "user", "content": "hello"}


def job(max_tokens=None, **fields):
    return Job("r1", "m", json.dumps({"messages": [HELLO], **fields}).encode(), 10, max_tokens, rank=0, stream=False)


def refused(**fields):
    with pytest.raises(EngineError) as raised:
        prepare(job(**fields))
    assert not raised.value.retryable
    return str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7},
        {"presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1},
        {"stop": "END"},
        {"stop": ["a", "b"], "include_stop_str_in_output": True},
        {"stop_token_ids": [1, 2], "allowed_token_ids": [3], "bad_words": ["no"]},
        {"min_tokens": 3, "ignore_eos": True, "skip_special_tokens": False, "spaces_between_special_tokens": False},
    ],
)
def test_known_sampling_fields_keep_their_names_and_values(fields):
    assert prepare(job(**fields)).sampling == fields


def test_token_ids_in_logit_bias_are_numbers():
    assert prepare(job(logit_bias={"50": -100, "7": 1.5})).sampling == {"logit_bias": {50: -100.0, 7: 1.5}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wild", 1),
        ("prompt_logprobs", 1),
        ("guided_json", {}),
        ("chat_template", "{{ x }}"),
        ("truncate_prompt_tokens", 5),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("n", 2),
        ("best_of", 2),
        ("modalities", ["text", "audio"]),
    ],
)
def test_a_field_that_would_be_passed_over_is_refused_by_its_name(field, value):
    assert f"`{field}`" in refused(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", None),
        ("wild", None),
        ("n", 1),
        ("tools", []),
        ("tool_choice", "auto"),
        ("logprobs", False),
        ("user", "u-1"),
        ("metadata", {"a": "b"}),
        ("model", "m"),
        ("stream", True),
        ("max_tokens", 5),
        ("max_completion_tokens", 5),
        ("response_format", {"type": "text"}),
        ("simulated_output_tokens", 5),
    ],
)
def test_a_field_that_asks_for_nothing_changes_nothing(field, value):
    assert prepare(job(**{field: value})) == prepare(job())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "text only"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"chat_template_kwargs": {"chat_template": "{% for x in y %}"}}, "`chat_template`"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(fields, said):
    assert said in refused(**fields)


def test_a_refusal_never_repeats_a_value_and_is_short():
    assert "secret" not in refused(temperature="secret words")
    assert len(refused(**{"x" * 5000: 1})) <= 200


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b"\xff\xfe", b'{"messages":' + b"[" * 100_000])
def test_a_body_that_is_no_chat_request_is_refused(body):
    with pytest.raises(EngineError) as raised:
        prepare(Job("r1", "m", body, 1, None, 0, stream=False))
    assert not raised.value.retryable


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts, "name": "ann"}]
    assert prepare(job(messages=messages)).messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo", "name": "ann"},
    ]


def test_options_of_the_template_and_the_wish_for_usage_are_kept_apart():
    prompt = prepare(
        job(chat_template_kwargs={"enable_thinking": False}, stream_options={"include_usage": True, "x": 1})
    )
    assert (prompt.template_options, prompt.wants_usage, prompt.sampling) == ({"enable_thinking": False}, True, {})
    assert not prepare(job(stream_options={"include_usage": False})).wants_usage


@pytest.mark.parametrize(
    ("wanted", "structured"),
    [
        ({"type": "json_object"}, {"json_object": True}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
            {"json": {"type": "object"}},
        ),
    ],
)
def test_a_response_format_becomes_a_structured_output(wanted, structured):
    assert prepare(job(response_format=wanted)).sampling == {"structured_outputs": structured}


def test_the_body_overrides_the_models_own_defaults():
    defaults = {"temperature": 0.6, "top_p": 0.9}
    assert sampling(prepare(job(temperature=0)), defaults, 50) == {"temperature": 0.0, "top_p": 0.9, "max_tokens": 50}


@pytest.mark.parametrize(("own", "limit_tokens", "most"), [(None, 50, 50), (20, 50, 20), (80, 50, 50)])
def test_a_model_may_have_a_limit_of_its_own(own, limit_tokens, most):
    assert sampling(prepare(job()), {"max_tokens": own}, limit_tokens)["max_tokens"] == most


@pytest.mark.parametrize(
    ("max_tokens", "prompt_tokens", "most"), [(None, 100, 1948), (10, 100, 10), (4000, 100, 1948), (None, 2047, 1)]
)
def test_an_answer_ends_at_its_limit_or_with_the_context(max_tokens, prompt_tokens, most):
    assert limit(job(max_tokens), prompt_tokens, 2048) == most


@pytest.mark.parametrize("prompt_tokens", [2048, 5000])
def test_a_prompt_that_fills_the_context_is_refused(prompt_tokens):
    with pytest.raises(EngineError, match=f"{prompt_tokens} tokens, the model's context 2048"):
        limit(job(), prompt_tokens, 2048)
