"""The simulator beside the real pipeline, far too short for its figures to mean anything."""

import pytest

from tests.support import command


@pytest.mark.slow  # acceptance of replay runs the real part, tests of the unit all else
def test_the_same_requests_are_served_and_simulated(tmp_path, stack_env):
    env = {name: stack_env[name] for name in ("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "RAMPMETER_REDIS__URL")}
    done = command.run("reality-check", "--limit", "60", "--engines", "1", "--json", cwd=tmp_path, env=env)
    found = command.one_line_of_json(done)
    assert (found["requests"], found["lost"]) == (60, 0)
    assert done.returncode == (1 if found["over"] else 0)
    # Admission classifies the same requests the same way in both.
    assert found["figures"]["short_ratio"]["real"] == pytest.approx(
        found["figures"]["short_ratio"]["simulated"], abs=0.1
    )
    assert found["figures"]["short_ttft_p50_s"]["real"] > 0
