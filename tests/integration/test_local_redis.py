"""The embedded Redis: answers, is clear in refusal, and gone with its parent."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from topics.errors import DependencyDown
from topics.local_redis import LocalRedis

PARENT = """
import sys, time
from pathlib import Path
from topics.local_redis import LocalRedis
server = LocalRedis(Path(sys.argv[1]))
server.start()
print(server.url, flush=True)
time.sleep(600)
"""


def answers(url):
    try:
        return redis.Redis.from_url(url, socket_timeout=1).ping()
    except redis.ConnectionError:
        return False


def test_it_runs_scripts_and_restarts_at_the_same_address(tmp_path):
    with LocalRedis(tmp_path) as server:
        first_url = server.url
        client = redis.Redis.from_url(server.url)
        assert client.eval("return redis.call('TIME')", 0)
        client.set("k", "v")
        assert client.get("k") == b"v"
        client.close()
    with LocalRedis(tmp_path) as server:
        assert server.url == first_url


def test_valkey_serves_where_no_redis_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with LocalRedis(tmp_path) as server:
        assert answers(server.url)


def test_it_listens_on_loopback_and_writes_no_data_file(tmp_path):
    with LocalRedis(tmp_path) as server:
        client = redis.Redis.from_url(server.url)
        assert client.config_get("bind")["bind"] == "127.0.0.1"
        client.set("k", "v")
        client.close()
    assert not list(tmp_path.glob("*.rdb"))
    assert not (tmp_path / "appendonlydir").exists()


def test_stop_leaves_no_server(tmp_path):
    server = LocalRedis(tmp_path)
    server.start()
    server.stop()
    assert not server.is_running()
    assert not answers(server.url)


def test_a_taken_port_is_named_with_its_setting(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(DependencyDown, match=rf"port {port}: it is taken .*set REDIS_PORT"):
            LocalRedis(tmp_path, port, port_setting="REDIS_PORT").start()


def test_a_second_server_on_the_same_data_is_refused(tmp_path):
    with LocalRedis(tmp_path), pytest.raises(DependencyDown, match="already runs on this data directory"):
        LocalRedis(tmp_path).start()


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_a_killed_parent_takes_the_server_with_it(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE)
    url = parent.stdout.readline().decode().strip()
    assert answers(url)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        if not answers(url):
            break
        time.sleep(0.05)
    assert not answers(url)
    assert Path(tmp_path / "redis.log").exists()
