from tests.support import command


def test_demo_scales_up_and_down_rejects_and_loses_nothing(tmp_path, stack_env):
    env = {name: stack_env[name] for name in ("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "RAMPMETER_REDIS__URL")}
    done = command.run("demo", "--seconds", "15", "--json", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    found = command.one_line_of_json(done)
    assert found["sent"] == found["replied"] > 300
    assert (found["lost"], found["duplicates"]) == (0, 0)
    assert found["outcomes"]["completed"] > found["sent"] / 2
    assert found["outcomes"]["rejected_budget"] > 0
    assert found["replicas"]["min"] == 1
    assert found["replicas"]["max"] > 1
    for figure in ("ttft_s", "e2e_s"):
        for length in ("short", "long"):
            assert 0 < found[figure][length]["p50"] <= found[figure][length]["p99"]
