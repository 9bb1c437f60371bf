"""One control plane for all tests here; each takes a namespace of its own."""

import pytest

from tests.kubernetes import binary
from tests.kubernetes.site import Site, account
from tests.support.control_plane import ControlPlane

NAMESPACES = [f"site-{n}" for n in range(20)]


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    if not binary.path().exists():
        pytest.skip(f"the control plane is not built: {binary.BUILD} builds it (Go; about six minutes)")
    plane = ControlPlane(binary.path(), tmp_path_factory.mktemp("plane"))
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
