import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge

from topics.errors import DependencyDown
from topics.status import StatusServer


@pytest.fixture
def server():
    complaints = {"live": None, "ready": "not yet"}
    registry = CollectorRegistry()
    Gauge("rampmeter_test_answers", "x", registry=registry).set(42)
    made = StatusServer(
        "127.0.0.1", 0, live=lambda: complaints["live"], ready=lambda: complaints["ready"], registry=registry
    )
    made.start()
    yield made, complaints
    made.stop()


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_probe_answers_ok_or_503_with_its_reason(server):
    status, complaints = server
    assert get(f"{status.url}/livez") == (200, "ok\n")
    assert get(f"{status.url}/readyz") == (503, "not yet\n")
    complaints.update(live="stuck", ready=None)
    assert get(f"{status.url}/livez?verbose") == (503, "stuck\n")
    assert get(f"{status.url}/readyz") == (200, "ok\n")


def test_metrics_are_served_and_other_paths_are_not(server):
    status, _ = server
    assert "rampmeter_test_answers 42.0" in get(f"{status.url}/metrics")[1]
    assert get(f"{status.url}/")[0] == 404


def test_a_taken_port_is_named_with_a_fix():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(DependencyDown, match=f"127.0.0.1:{port}.*RAMPMETER_STATUS_PORT"):
            StatusServer("127.0.0.1", port, live=lambda: None, ready=lambda: None)
