import contextlib
import socket
import threading
import time

import pytest

from tests.support.proxy import Proxy
from topics.local_process import HOST


class Echo:
    """Sends back what it gets, and keeps it."""

    def __init__(self):
        self._listening = socket.create_server((HOST, 0))
        self.port = self._listening.getsockname()[1]
        self.got = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=self._listening.accept()[:1], daemon=True).start()

    def _answer(self, connection):
        with contextlib.suppress(OSError):
            while data := connection.recv(1000):
                self.got += data
                connection.sendall(data)

    def close(self):
        self._listening.close()


@pytest.fixture
def echo():
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo):
    with Proxy(echo.port) as made:
        yield made


@pytest.fixture
def client(proxy):
    with socket.create_connection((HOST, proxy.port), timeout=5) as made:
        yield made


def test_what_goes_in_comes_out_on_both_sides(client, echo):
    client.sendall(b"hello")
    assert client.recv(5) == b"hello"
    assert echo.got == b"hello"


def test_a_delay_is_of_each_direction(proxy, client):
    proxy.delay(0.2)
    started_s = time.monotonic()
    client.sendall(b"slow")
    assert client.recv(4) == b"slow"
    assert time.monotonic() - started_s >= 0.4


def test_a_cut_ends_connections_and_new_ones_are_carried(proxy, client):
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    proxy.cut()
    with contextlib.suppress(ConnectionError):
        assert client.recv(1) == b""
    with socket.create_connection((HOST, proxy.port), timeout=5) as again:
        again.sendall(b"y")
        assert again.recv(1) == b"y"


def test_what_is_swallowed_arrives_at_the_end_also_from_a_sender_that_gave_up(proxy, client, echo):
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    proxy.swallow()
    client.sendall(b"late")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.close()
    assert echo.got == b"a"
    proxy.heal()
    end_s = time.monotonic() + 5
    while echo.got != b"alate":
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_server_that_is_not_there_ends_the_connection():
    with (
        socket.create_server((HOST, 0)) as gone,
        Proxy(gone.getsockname()[1]) as proxy,
    ):
        gone.close()
        with socket.create_connection((HOST, proxy.port), timeout=5) as client, contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""
