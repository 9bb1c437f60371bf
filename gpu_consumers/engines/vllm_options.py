"""How vLLM is set up: its arguments, derived from what a consumer holds in it.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from topics.errors import ConfigError

Dtype = Literal["auto", "bfloat16", "float16", "float32"]


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Which model, how much of it, and what the consumer in front of it keeps inside."""

    model: str
    """A folder, or a name that vLLM can fetch."""
    dtype: Dtype = "auto"
    context_tokens: int | None = None
    """Prompt plus answer of one job; None is the model's own."""
    kv_bytes: int | None = None
    """Memory of the KV cache; None lets vLLM take what is free."""
    window_requests: int = 64
    """Jobs inside at once."""
    prefill_limit_tokens: int = 4096
    """Prompt tokens inside without a first token: two prefill chunks."""
    long_window_ratio: float = 0.75
    """Of a prefill chunk, what one prompt may take."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of vLLM that nothing here derives."""


def arguments(options: VllmOptions) -> dict[str, Any]:
    """The fields of vLLM's AsyncEngineArgs; raises ConfigError when `more` says again what is derived."""
    chunk_tokens = max(1, options.prefill_limit_tokens // 2)
    # A prompt beyond it is read in several steps, so that the prompts of others are read beside it.
    long_prompt_tokens = max(1, int(chunk_tokens * options.long_window_ratio))
    if options.context_tokens is not None:
        long_prompt_tokens = min(long_prompt_tokens, options.context_tokens)
    derived = {
        "model": options.model,
        "dtype": options.dtype,
        "max_model_len": options.context_tokens,
        "kv_cache_memory_bytes": options.kv_bytes,
        # The consumer hands over no more: whoever waits does so outside, where the order is decided.
        "max_num_seqs": options.window_requests,
        # A step has room for a token of every running job beside the chunk.
        "max_num_batched_tokens": chunk_tokens + options.window_requests,
        "long_prefill_token_threshold": long_prompt_tokens,
        "enable_chunked_prefill": True,
        "scheduling_policy": "priority",
        # Requests are logged with their prompts.
        "enable_log_requests": False,
        # Its own log of figures; our logger gets them all the same.
        "disable_log_stats": True,
    }
    if again := sorted(derived.keys() & options.more.keys()):
        raise ConfigError([f"gpu.vllm_arguments: {name} follows from other settings" for name in again])
    return {**options.more, **{name: value for name, value in derived.items() if value is not None}}
