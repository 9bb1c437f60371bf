import sys

import pytest

from gpu_consumers import wiring
from gpu_consumers.engines import factory
from gpu_consumers.engines.vllm_options import VllmOptions, arguments
from gpu_consumers.settings import Gpu
from tests.support.clock import FakeClock
from topics.errors import ConfigError, DependencyDown


def test_sizes_follow_from_what_the_consumer_holds_in_the_engine():
    made = arguments(VllmOptions("m", window_requests=64, prefill_limit_tokens=4096, long_window_ratio=0.75))
    assert made["max_num_seqs"] == 64
    assert made["max_num_batched_tokens"] == 2048 + 64
    assert made["long_prefill_token_threshold"] == 1536


@pytest.mark.parametrize(
    ("prefill", "ratio", "context"), [(1, 0.1, None), (4096, 0.75, 512), (10, 1.0, 100), (2, 1, 1)]
)
@pytest.mark.parametrize("window", [1, 1000])
def test_sizes_are_ones_that_vllm_takes(prefill, ratio, context, window):
    made = arguments(
        VllmOptions(
            "m", context_tokens=context, window_requests=window, prefill_limit_tokens=prefill, long_window_ratio=ratio
        )
    )
    assert made["max_num_batched_tokens"] > made["max_num_seqs"] >= 1
    assert 1 <= made["long_prefill_token_threshold"] <= made["max_num_batched_tokens"]
    assert context is None or made["long_prefill_token_threshold"] <= context


def test_the_lowest_number_first_and_no_prompts_in_logs():
    made = arguments(VllmOptions("m"))
    assert (made["scheduling_policy"], made["enable_log_requests"]) == ("priority", False)


def test_what_is_unset_is_left_to_vllm_and_the_rest_is_passed_on():
    made = arguments(VllmOptions("m", more={"tensor_parallel_size": 4}))
    assert {"max_model_len", "kv_cache_memory_bytes"}.isdisjoint(made)
    assert (made["model"], made["dtype"], made["tensor_parallel_size"]) == ("m", "auto", 4)
    small = arguments(VllmOptions("m", dtype="float32", context_tokens=100, kv_bytes=2**30))
    assert (small["dtype"], small["max_model_len"], small["kv_cache_memory_bytes"]) == ("float32", 100, 2**30)


def test_an_argument_that_is_derived_cannot_be_set_besides():
    with pytest.raises(ConfigError) as raised:
        arguments(VllmOptions("m", more={"max_num_seqs": 4, "scheduling_policy": "fcfs", "enforce_eager": True}))
    assert len(raised.value.problems) == 2


def test_the_settings_reach_the_engine():
    gpu = Gpu(
        engine="vllm", vllm_model="/models/m", vllm_dtype="bfloat16", vllm_context_tokens=2048, vllm_kv_bytes=2**30,
        vllm_arguments={"enforce_eager": True}, window_requests=8, prefill_limit_tokens=1000, long_window_ratio=0.5,
    )  # fmt: skip
    assert wiring.engine_options(gpu) == VllmOptions(
        "/models/m", "bfloat16", 2048, 2**30, 8, 1000, 0.5, {"enforce_eager": True}
    )


def test_the_engine_needs_a_model():
    with pytest.raises(ValueError, match="vllm_model"):
        Gpu(engine="vllm")


@pytest.mark.asyncio
async def test_without_vllm_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "gpu_consumers.engines.vllm", raising=False)
    with pytest.raises(DependencyDown, match=r"pip install --group gpu"):
        await factory.start(VllmOptions("m"), FakeClock())


def test_nothing_imports_vllm_before_it_is_chosen():
    import gpu_consumers.__main__  # noqa: F401

    assert not {"vllm", "gpu_consumers.engines.vllm"} & set(sys.modules)
