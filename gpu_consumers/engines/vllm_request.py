"""What an OpenAI chat body says to vLLM: messages for the chat template, and fields of SamplingParams.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_consumers.engine import Job
from gpu_consumers.engines.openai_request import MAX_DETAIL_CHARS
from topics import codec
from topics.errors import EngineError

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
}
"""Fields that this engine does not serve, with the values that ask for nothing."""
_NOT_SAMPLING = frozenset({"messages", "chat_template_kwargs", "response_format", "stream_options"})
_IGNORED = frozenset({
    "model", "stream", "max_tokens", "max_completion_tokens", "user", "metadata", "store", "service_tier",
    "safety_identifier", "prompt_cache_key", "simulated_output_tokens",
})  # fmt: skip
"""Without effect on the text, or already in the job."""

_TEMPLATES_OWN = frozenset({
    "conversation", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message",
    "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs", "processor_kwargs",
})  # fmt: skip
"""What the tokenizer's own function takes beside the template's options; a sender's template could run for ever."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    messages: list[dict[str, Any]]
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logit_bias: dict[int, float] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None


_SAMPLING = tuple(name for name in _Body.__struct_fields__ if name not in _NOT_SAMPLING)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Prompt:
    """A body, taken apart."""

    messages: list[dict[str, Any]]
    """Contents are plain text."""
    template_options: dict[str, Any]
    sampling: dict[str, Any]
    """Fields of SamplingParams that the body names; `structured_outputs` holds those of StructuredOutputsParams."""
    wants_usage: bool


def prepare(job: Job) -> Prompt:
    """Take the body apart; a field that would be passed over is refused."""
    try:
        fields = {name: value for name, value in _decode(job.body).items() if value is not None}
        fields = {name: value for name, value in fields.items() if name not in _IGNORED}
        for name in _NEUTRAL.keys() & fields.keys():
            if not any(fields[name] == neutral for neutral in _NEUTRAL[name]):
                raise _refusal(f"the vllm engine does not serve `{name}`")
            del fields[name]
        body = msgspec.convert(fields, _Body, str_keys=True)
    except msgspec.ValidationError as error:
        raise _refusal(f"the body is no request for the vllm engine: {error}") from error
    except codec.UNREADABLE as error:
        raise _refusal("the body is not an OpenAI chat request") from error
    options = body.chat_template_kwargs or {}
    for name in _TEMPLATES_OWN & options.keys():
        raise _refusal(f"chat_template_kwargs may not hold `{name}`")
    named = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    return Prompt(
        messages=[_plain(message) for message in body.messages],
        template_options=options,
        sampling={**named, **_format(body.response_format)},
        wants_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def sampling(prompt: Prompt, defaults: Mapping[str, Any], limit_tokens: int) -> dict[str, Any]:
    """The body's fields over the model's own defaults."""
    limit_tokens = min(limit_tokens, defaults.get("max_tokens") or limit_tokens)
    return {**defaults, **prompt.sampling, "max_tokens": limit_tokens}


def limit(job: Job, prompt_tokens: int, context_tokens: int) -> int:
    """The most output tokens that the job may have; refuses a prompt that leaves no room for one."""
    room_tokens = context_tokens - prompt_tokens
    if room_tokens < 1:
        raise _refusal(f"the prompt has {prompt_tokens} tokens, the model's context {context_tokens}")
    return room_tokens if job.max_tokens is None else max(1, min(job.max_tokens, room_tokens))


def _format(wanted: dict[str, Any] | None) -> dict[str, Any]:
    match wanted:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"structured_outputs": {"json_object": True}}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"structured_outputs": {"json": schema}}
        case _:
            raise _refusal("response_format must be text, json_object, or a json_schema with its schema")


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its content as one text, as chat templates of text models expect it."""
    match message:
        case {"role": str(), "content": str()}:
            return message
        case {"role": str(), "content": [*parts]}:
            return {**message, "content": "\n".join(map(_text, parts))}
        case _:
            raise _refusal("a message needs a role and a content of text")


def _text(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            raise _refusal("the vllm engine serves text only: a part of a message is something else")


def _refusal(detail: str) -> EngineError:
    return EngineError(detail[:MAX_DETAIL_CHARS], retryable=False)
