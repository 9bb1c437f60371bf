"""The part of section `gpu` that concerns one engine alone."""

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, SecretStr

from gpu_consumers.engines.vllm_options import Dtype
from topics.section import Section


class Engines(Section):
    """Of the engines `openai` and `vllm`."""

    openai_base_url: str = "http://127.0.0.1:8000/v1"
    openai_api_key: SecretStr | None = None
    openai_timeout_s: PositiveFloat = 600.0
    """Longest silence of the server.  Too small: long prompts fail.  Too large: a hung server holds its requests."""
    openai_breaker_failures: PositiveInt = 5
    """Failures in a row after which nothing is sent to the server but probes.  Too small: a passing fault stops all.
    Too large: as many requests fail at a server that is gone."""
    openai_probe_s: PositiveFloat = 1.0
    """Pause before each probe of such a server.  Too small: load on a sick server.  Too large: a late return."""
    refused_wait_s: PositiveFloat = 120.0
    """Longest pause that a server may ask for (Retry-After), and how long a request may wait for an engine that does
    not take it before that counts as a failed attempt.  Too small: a busy server fails requests.  Too large: one that
    its server never takes is tried for as long."""

    vllm_model: str | None = None
    """The model of the engine `vllm`: a folder, or a name that vLLM can fetch."""
    vllm_dtype: Dtype = "auto"
    """Of weights and computation.  Too small: answers get worse.  Too large: memory and time."""
    vllm_context_tokens: PositiveInt | None = None
    """Prompt plus answer of one request; unset: the model's own.  Too small: long prompts are refused.
    Too large: it does not start, since one request must fit into the KV cache."""
    vllm_kv_bytes: PositiveInt | None = None
    """KV cache; unset: vLLM takes nearly all that is free, on a CPU too.  Too small: few requests run at once.
    Too large: no memory is left for the rest of the machine."""
    vllm_arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """More arguments of vLLM's engine, such as `{"tensor_parallel_size": 4}`; those that follow from other settings
    are refused."""
