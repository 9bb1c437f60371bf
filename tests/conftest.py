"""Fixtures for every test, and the marker that each folder of tests implies."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis

pytest.register_assert_rewrite("tests.support.engine_conformance")

from tests.support.services import (  # noqa: E402, F401 - after the line above; pytest finds fixtures by their names here
    _no_process_left,
    _no_settings_from_outside,
    broker,
    hosted,
    redis_server,
    rig,
    rig_on,
    settings,
    stack_env,
)
from tests.support.spans import told  # noqa: E402, F401 - see above

# The machine is shared: an example may take any time.
hypothesis.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis.load_profile("shared")

_ROOT = Path(__file__).parent
_MARKED = ("integration", "acceptance", "chaos")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run what takes minutes")


def pytest_collection_modifyitems(config, items):
    for item in items:
        folder = item.path.relative_to(_ROOT).parts[0]
        if folder in _MARKED:
            item.add_marker(folder)
    if not config.getoption("--slow"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
