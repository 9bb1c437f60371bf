"""What is down or taken ends the command with status 69, a place and a way out."""

import socket
import subprocess
import sys

import pytest

from tests.support import command

NOWHERE = {"RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "RAMPMETER_REDIS__URL": "redis://127.0.0.1:1/0"}


def test_kafka_down_at_start_is_status_69_everywhere(tmp_path):
    programs = [
        [command.RAMPMETER, "submit", "hello"],
        [command.RAMPMETER, "up"],
        [command.RAMPMETER, "lag"],
        *([sys.executable, "-m", package] for package in ("streams", "gpu_consumers", "autoscaler")),
    ]
    # Side by side, since each waits for the broker's answer first.
    running = [
        subprocess.Popen(
            argv, cwd=tmp_path, env=command.environment(NOWHERE), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for argv in programs
    ]
    for one in running:
        out, err = one.communicate(timeout=60)
        assert one.returncode == 69, err
        assert out == b""
        assert b"127.0.0.1:1" in err
        assert b"RAMPMETER_KAFKA__BOOTSTRAP_SERVERS" in err


def test_redis_down_at_start_is_status_69(stack_env, tmp_path):
    env = {**stack_env, "RAMPMETER_REDIS__URL": NOWHERE["RAMPMETER_REDIS__URL"]}
    done = command.run("up", cwd=tmp_path, env=env)
    assert done.returncode == 69
    assert "RAMPMETER_REDIS__URL" in done.stderr


@pytest.mark.parametrize("setting", ["RAMPMETER_STACK__KAFKA_PORT", "RAMPMETER_STACK__REDIS_PORT"])
def test_taken_port_is_status_69_and_names_the_setting(tmp_path, setting):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = command.run("up", "--no-llama", cwd=tmp_path, env={setting: str(port)})
    assert done.returncode == 69
    assert f"127.0.0.1:{port}" in done.stderr
    assert setting in done.stderr


def test_wrong_partition_counts_stop_the_stack_and_name_both_numbers(settings, stack_env, tmp_path):
    done = command.run("up", cwd=tmp_path, env={**stack_env, "RAMPMETER_TOPICS__LANDING_PARTITIONS": "3"})
    assert done.returncode == 78
    assert "has 2 partitions, the settings want 3" in done.stderr
