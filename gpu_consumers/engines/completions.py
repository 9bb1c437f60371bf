"""OpenAI chat completions: bodies made from text, and a whole body made from streamed chunks."""

from typing import Any

import msgspec

from topics import bounds
from topics.records import Tokens

_encode = msgspec.json.Encoder().encode
_CHUNK = "chat.completion.chunk"
_ONCE = frozenset({"id", "role", "type", "name"})
"""Fields of a delta that come whole, not in parts."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Asked(msgspec.Struct):
    stream_options: _StreamOptions | None = None


_decode_asked = msgspec.json.Decoder(_Asked).decode


def wants_usage(body: bytes) -> bool:
    """Whether the request wants its stream to end with `usage_chunk`."""
    try:
        options = _decode_asked(body).stream_options
    except msgspec.MsgspecError:
        return False
    return options is not None and options.include_usage


def whole(job_id: str, model: str, created_s: float, text: str, finish_reason: str, tokens: Tokens) -> bytes:
    """A chat.completion with one choice."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return _encode({**_head("chat.completion", job_id, model, created_s), "choices": [choice], "usage": _usage(tokens)})


def chunk(job_id: str, model: str, created_s: float, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    """A chat.completion.chunk with one choice."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _encode({**_head(_CHUNK, job_id, model, created_s), "choices": [choice]})


def usage_chunk(job_id: str, model: str, created_s: float, tokens: Tokens) -> bytes:
    """The chat.completion.chunk without a choice that ends a stream with `include_usage`."""
    return _encode({**_head(_CHUNK, job_id, model, created_s), "choices": [], "usage": _usage(tokens)})


def _head(kind: str, job_id: str, model: str, created_s: float) -> dict[str, Any]:
    return {"id": f"chatcmpl-{job_id}", "object": kind, "created": int(created_s), "model": model}


def _usage(tokens: Tokens) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.prompt + tokens.output,
    }
    return {**usage, "prompt_tokens_details": {"cached_tokens": tokens.cached}} if tokens.cached else usage


class Assembly:
    """Puts a chat.completion together from its chunks; fields it does not know are kept."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self.tokens: Tokens | None = None
        """From the server's usage; None until it came."""
        self.engine_s: float | None = None
        """From llama.cpp's timings; None elsewhere."""

    def add(self, data: dict[str, Any]) -> bool:
        """Take one chunk in; tell whether it shows that a token was made."""
        self._head.update((name, value) for name, value in data.items() if name != "choices" and value is not None)
        self._read_counts(data)
        has_token = False
        for choice in data.get("choices") or ():
            has_token |= self._add_choice(choice)
        return has_token

    def body(self) -> bytes:
        """The whole answer so far."""
        return _encode(
            {**self._head, "object": "chat.completion", "choices": [self._choices[i] for i in sorted(self._choices)]}
        )

    def _read_counts(self, data: dict[str, Any]) -> None:
        usage, timings = data.get("usage"), data.get("timings")
        if usage:
            prompt = bounds.count(usage.get("prompt_tokens"))
            cached = bounds.count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
            output = bounds.count(usage.get("completion_tokens"))
            self.tokens = Tokens(prompt=prompt, output=output, cached=min(cached, prompt))
        if timings:
            self.engine_s = max(0.0, (timings.get("prompt_ms", 0.0) + timings.get("predicted_ms", 0.0)) / 1000)

    def _add_choice(self, choice: dict[str, Any]) -> bool:
        index = choice.get("index") or 0
        delta = choice.get("delta") or {}
        mine = self._choices.setdefault(
            index, {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None}
        )
        _merge(mine["message"], delta)
        if logprobs := choice.get("logprobs"):
            _merge(mine.setdefault("logprobs", {}), logprobs)
        for name, value in choice.items():
            if name not in ("index", "delta", "logprobs") and value is not None:
                mine[name] = value
        return choice.get("finish_reason") is not None or any(value for name, value in delta.items() if name != "role")


def _merge(into: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        held = into.get(name)
        if value is None:
            continue
        if name == "tool_calls":
            _merge_tool_calls(into.setdefault(name, []), value)
        elif isinstance(value, str) and isinstance(held, str) and name not in _ONCE:
            into[name] = held + value
        elif isinstance(value, list) and isinstance(held, list):
            held.extend(value)
        elif isinstance(value, dict) and isinstance(held, dict):
            _merge(held, value)
        else:
            into[name] = value


def _merge_tool_calls(into: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    for part in parts:
        index = part.get("index", len(into))
        while len(into) <= index:
            into.append({})
        _merge(into[index], {name: value for name, value in part.items() if name != "index"})
