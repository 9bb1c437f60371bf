"""Starts the engine that the options name."""

from typing import assert_never

from gpu_consumers.engine import Engine
from gpu_consumers.engines import llama
from gpu_consumers.engines.llama import LlamaOptions
from gpu_consumers.engines.null import NullEngine, NullOptions
from gpu_consumers.engines.openai import OpenAiEngine, OpenAiOptions
from gpu_consumers.engines.simulated import SimulatedEngine, SimulatedOptions
from topics.clock import Clock

Options = SimulatedOptions | OpenAiOptions | LlamaOptions | NullOptions


async def start(options: Options, clock: Clock) -> Engine:
    """Return a running engine; raises DependencyDown when its parts are missing."""
    match options:
        case SimulatedOptions():
            return SimulatedEngine(options, clock)
        case OpenAiOptions():
            return OpenAiEngine(options)
        case LlamaOptions():
            return await llama.start(options)
        case NullOptions():
            return NullEngine(clock)
        case _:
            assert_never(options)
