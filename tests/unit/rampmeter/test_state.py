import json
import os
import subprocess
import sys

import pytest

from rampmeter import state
from rampmeter.settings import StackSettings
from topics.settings import Settings, load


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPMETER_STACK__DATA_DIR", str(tmp_path))
    return tmp_path


def note_of_a_stack(data_dir):
    settings = load(
        StackSettings, kafka={"bootstrap.servers": "127.0.0.1:1234"}, redis={"url": "redis://127.0.0.1:99/3"}
    )
    state.write(data_dir, settings, {"kafka": "127.0.0.1:1234"})


def test_running_stack_is_found_without_variables(data_dir):
    note_of_a_stack(data_dir)
    found = state.connect(Settings)
    assert found.kafka["bootstrap.servers"] == "127.0.0.1:1234"
    assert found.redis.url == "redis://127.0.0.1:99/3"


def test_users_own_kafka_wins_over_a_running_stack(data_dir, monkeypatch):
    note_of_a_stack(data_dir)
    monkeypatch.setenv("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "mine:9092")
    assert state.connect(Settings).kafka["bootstrap.servers"] == "mine:9092"


def test_note_of_a_dead_stack_is_ignored(data_dir):
    note_of_a_stack(data_dir)
    path = data_dir / state.FILE_NAME
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": ended.pid}))
    assert state.connect(Settings).kafka["bootstrap.servers"] == "127.0.0.1:9092"


def test_note_is_private_and_only_its_writer_removes_it(data_dir):
    note_of_a_stack(data_dir)
    path = data_dir / state.FILE_NAME
    assert path.stat().st_mode & 0o077 == 0
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": os.getppid()}))
    state.remove(data_dir)
    assert path.exists()
    note_of_a_stack(data_dir)
    state.remove(data_dir)
    assert not path.exists()


def test_torn_note_is_no_note(data_dir):
    (data_dir / state.FILE_NAME).write_text("{")
    assert state.connect(Settings).kafka["bootstrap.servers"] == "127.0.0.1:9092"


def test_own_redis_is_recognised_even_at_the_default_address(monkeypatch):
    assert not state.has_own_redis(load(Settings))
    monkeypatch.setenv("RAMPMETER_REDIS__URL", "redis://127.0.0.1:6379/0")
    assert state.has_own_redis(load(Settings))
