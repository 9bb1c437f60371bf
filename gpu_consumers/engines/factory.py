"""Starts the engine that the options name."""

import os
from typing import assert_never

from gpu_consumers.engine import Engine
from gpu_consumers.engines import llama
from gpu_consumers.engines.llama import LlamaOptions
from gpu_consumers.engines.null import NullEngine, NullOptions
from gpu_consumers.engines.openai import OpenAiEngine
from gpu_consumers.engines.openai_options import OpenAiOptions
from gpu_consumers.engines.simulated import SimulatedEngine, SimulatedOptions
from gpu_consumers.engines.vllm_options import VllmOptions
from topics.clock import Clock
from topics.errors import DependencyDown

Options = SimulatedOptions | OpenAiOptions | LlamaOptions | VllmOptions | NullOptions


async def start(options: Options, clock: Clock) -> Engine:
    """Return a running engine; raises DependencyDown when its parts are missing."""
    match options:
        case SimulatedOptions():
            return SimulatedEngine(options, clock)
        case OpenAiOptions():
            return OpenAiEngine(options, clock)
        case LlamaOptions():
            return await llama.start(options, clock)
        case VllmOptions():
            return _start_vllm(options, clock)
        case NullOptions():
            return NullEngine(clock)
        case _:
            assert_never(options)


def _start_vllm(options: VllmOptions, clock: Clock) -> Engine:
    # vLLM takes these from the environment alone, while it is imported.  Its log of the start is long, and its usage
    # reports leave the machine.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        from gpu_consumers.engines import vllm  # noqa: PLC0415 - a large package that only this engine needs
    except ImportError as error:
        fix = "Install it: pip install --group gpu, see the README; or on a CPU: make test-vllm."
        raise DependencyDown(f"vLLM cannot be imported: {error}", "package vllm", fix) from error
    return vllm.start(options, clock)
