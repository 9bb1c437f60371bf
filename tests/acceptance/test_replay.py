from pathlib import Path

import pytest

from tests.support import command

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "azure2023_mixed.csv"


@pytest.fixture
def replay(tmp_path, stack_env):
    env = {name: stack_env[name] for name in ("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "RAMPMETER_REDIS__URL")}
    trace = [str(TRACE)] if TRACE.exists() else []

    def run(folder, *args):
        (tmp_path / folder).mkdir()
        done = command.run("replay", *trace, "--json", *args, cwd=tmp_path / folder, env=env)
        assert done.returncode == 0, done.stderr
        found = command.one_line_of_json(done)
        assert found["sent"] == found["replied"] == sum(found["outcomes"].values())
        assert (found["lost"], found["duplicates"]) == (0, 0)
        return found

    return run


@pytest.mark.alone
def test_declared_shorts_wait_much_less_than_in_one_queue(replay):
    # One after the other: side by side they would take each other's CPU, and the gain with it.
    load = ("--limit", "2000", "--load", "0.95", "--speed", "8")
    ours, fifo = replay("ours", *load), replay("fifo", *load, "--policy", "fifo")
    assert ours["crashes"] == fifo["crashes"] == 0
    # A short slice of the generated load has no burst as long as the one in the trace.
    gain = 5 if TRACE.exists() else 1.5
    assert ours["ttft_s"]["short"]["p99"] * gain < fifo["ttft_s"]["short"]["p99"]


@pytest.mark.slow  # make chaos, and its cut, do it at length
def test_nothing_is_lost_or_doubled_when_a_consumer_and_a_streams_worker_are_killed(replay):
    found = replay("chaos", "--limit", "600", "--load", "0.8", "--speed", "10", "--chaos")
    assert found["crashes"] == 2
