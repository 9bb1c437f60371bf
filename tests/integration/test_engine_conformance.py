"""What every engine must do, on the engines that the normal environment has."""

import pytest
import pytest_asyncio

from tests.support.engine_conformance import *  # noqa: F403 - its tests run here
from tests.support.engines import KINDS, SERIAL_KINDS, opened

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=KINDS)
async def engine(request):
    async with opened(request.param) as made:
        yield made


@pytest_asyncio.fixture(params=[*KINDS, "null"])
async def any_engine(request):
    async with opened(request.param) as made:
        yield made


@pytest_asyncio.fixture(params=SERIAL_KINDS)
async def serial_engine(request):
    async with opened(request.param, parallel=1) as made:
        yield made


@pytest_asyncio.fixture
async def ranking_engine():
    async with opened("simulated", parallel=1) as made:
        yield made


@pytest.fixture
def engine_to_close(engine):
    return engine
