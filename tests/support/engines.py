"""Engines under test."""

from contextlib import asynccontextmanager

from gpu_consumers.engines import factory
from gpu_consumers.engines.llama import LlamaOptions
from gpu_consumers.engines.null import NullOptions
from gpu_consumers.engines.openai_options import OpenAiOptions
from gpu_consumers.engines.simulated import SimulatedOptions
from tests.support.openai_server import serve
from topics.clock import SystemClock

KINDS = ("simulated", "openai", "llama", "openai_to_llama")
SERIAL_KINDS = ("simulated", "llama", "openai_to_llama")
"""Those that can be told to run a single job at a time."""


@asynccontextmanager
async def running(options, clock=None):
    engine = await factory.start(options, clock or SystemClock())
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def opened(kind, parallel=None):
    """An engine of this kind; `parallel` is how many jobs it runs at once, where it can be told."""
    llama = LlamaOptions() if parallel is None else LlamaOptions(parallel=parallel)
    if kind == "openai":
        async with serve() as server, running(OpenAiOptions(server.url)) as engine:
            server.words = server.words * 250
            server.pause_s = 0.01
            yield engine
    elif kind == "openai_to_llama":
        async with running(llama) as owner, running(OpenAiOptions(owner.base_url)) as engine:
            yield engine
    else:
        simulated = SimulatedOptions(speed=50.0) if parallel is None else SimulatedOptions(max_sequences=parallel)
        async with running({"simulated": simulated, "llama": llama, "null": NullOptions()}[kind]) as engine:
            yield engine
