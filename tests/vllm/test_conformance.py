"""What every engine must do, on real vLLM."""

import pytest

from tests.support.engine_conformance import *  # noqa: F403 - its tests run here

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
