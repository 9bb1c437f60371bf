"""Engines under test."""

from contextlib import asynccontextmanager

from gpu_consumers.engines import factory
from gpu_consumers.engines.llama import LlamaOptions
from gpu_consumers.engines.null import NullOptions
from gpu_consumers.engines.openai import OpenAiOptions
from gpu_consumers.engines.simulated import SimulatedOptions
from tests.support.openai_server import serve
from topics.clock import SystemClock

KINDS = ("simulated", "openai", "llama", "openai_to_llama")


@asynccontextmanager
async def running(options):
    engine = await factory.start(options, SystemClock())
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def opened(kind):
    if kind == "openai":
        async with serve() as server, running(OpenAiOptions(server.url)) as engine:
            server.words = server.words * 250
            server.pause_s = 0.01
            yield engine
    elif kind == "openai_to_llama":
        async with running(LlamaOptions()) as llama, running(OpenAiOptions(llama.base_url)) as engine:
            yield engine
    else:
        options = {"simulated": SimulatedOptions(speed=50.0), "llama": LlamaOptions(), "null": NullOptions()}[kind]
        async with running(options) as engine:
            yield engine
