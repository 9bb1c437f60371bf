"""Tests of the real vLLM, in an environment of its own: `make test-vllm`."""

import importlib.util

import pytest
import pytest_asyncio

from gpu_consumers.engines import factory
from gpu_consumers.engines.vllm_options import VllmOptions
from tests.support import smollm2
from topics.clock import SystemClock

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield str(smollm2.folder())


@pytest.fixture(scope="session")
def start(model):
    """Starts an engine, in about 25 s."""

    async def started(window_requests=16):
        options = VllmOptions(
            model=model,
            context_tokens=smollm2.CONTEXT_TOKENS,
            kv_bytes=smollm2.KV_BYTES,
            window_requests=window_requests,
            more={"enforce_eager": True},
        )
        return await factory.start(options, SystemClock())

    return started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(start):
    """One for all tests that leave it as it was."""
    made = await start()
    yield made
    await made.close()


@pytest.fixture
def any_engine(engine):
    return engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine_to_close(start):
    made = await start(window_requests=1)
    yield made
    await made.close()


@pytest.fixture
def serial_engine(engine_to_close):
    return engine_to_close


@pytest.fixture
def ranking_engine(engine_to_close):
    return engine_to_close
