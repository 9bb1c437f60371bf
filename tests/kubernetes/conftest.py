"""One control plane for all tests here; each takes a namespace of its own."""

import pytest

from tests.kubernetes.binary import CONTROL_PLANE
from tests.kubernetes.site import Site, account
from tests.support.control_plane import ControlPlane

NAMESPACES = [f"site-{n}" for n in range(20)]


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    if not CONTROL_PLANE.is_built:
        pytest.skip(f"the control plane is not built: {CONTROL_PLANE.command} builds it (Go; about six minutes)")
    plane = ControlPlane(CONTROL_PLANE.folder / "control_plane", tmp_path_factory.mktemp("plane"))
    try:
        yield plane.start(account(namespace) for namespace in NAMESPACES)
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def unused():
    """Names of namespaces that nobody has."""
    return iter(NAMESPACES)


@pytest.fixture
def site(plane, unused):
    return Site(plane, next(unused))
