import json
import sys

import pytest

from rampmeter import cli, durations
from topics import process


@pytest.fixture
def rampmeter(monkeypatch, capsys):
    """Run the command in this process; returns status, stdout and stderr."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rampmeter", *args])
        monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize(
    "args",
    [
        ("no-such-command",),
        ("submit",),
        ("submit", "hi", "--priority", "urgent"),
        ("replay", "--policy", "lifo"),
        ("replay", "--speed", "0"),
        ("demo", "--seconds", "1"),
        ("audit", "--since", "tomorrow"),
        ("shadow-diff",),
        ("reality-check", "--limit", "1"),
        ("reality-check", "--offset", "2"),
        ("shadow-diff", "small", "--since", "tomorrow"),
        ("topics",),
        ("up", "--engines", "-1"),
        ("cancel",),
        ("cancel", "two words"),
        ("cancel", "r1", "--tenant", "a b"),
        ("pause", "acme"),
        ("pause", "global", "all"),
        ("pause", "pool", "elsewhere"),
        ("resume", "class", "urgent"),
        ("limits",),
        ("limits", "set", "tenant", "acme"),
        ("limits", "set", "tenant", "--burst-s", "5"),
        ("limits", "set", "global", "--burst-s", "0"),
        ("limits", "reset", "request", "r1"),
        ("replay-decisions", "--since", "tomorrow"),
        ("what-if", "--replicas", "0"),
        ("autoscaler",),
        ("autoscaler", "explain", "--last", "0"),
        ("autoscaler", "explain", "--since", "tomorrow"),
        ("autoscaler", "explain", "--pool", "elsewhere"),
        ("dlq",),
        ("dlq", "ls", "--reason", "bad_luck"),
        ("dlq", "show"),
        ("dlq", "show", "-1"),
        ("dlq", "replay"),
        ("dlq", "replay", "3", "--all"),
        ("dlq", "ls", "--since", "tomorrow"),
        ("top",),  # standard output is no terminal here
        ("top", "--every", "0"),
        ("top", "--json", "--tenants", "0"),
    ],
)
def test_wrong_use_is_status_2_and_says_nothing_on_stdout_but_help(rampmeter, args):
    status, out, err = rampmeter(*args)
    assert status == process.EXIT_USAGE
    assert "Usage" in out + err


def test_all_invalid_settings_are_named_at_once(rampmeter, monkeypatch):
    for name, value in (
        ("RAMPMETER_REDIS__URL", "localhost"),
        ("RAMPMETER_STACK__STREAMS_WORKERS", "0"),
        ("RAMPMETER_TOPICS__LANDING_PARTITIONS", "many"),
    ):
        monkeypatch.setenv(name, value)
    for args in (("demo",), ("up",), ("replay",), ("submit", "hi"), ("topics", "check")):
        status, out, err = rampmeter(*args)
        assert status == process.EXIT_CONFIG
        assert out == ""
        for name in ("RAMPMETER_REDIS__URL", "RAMPMETER_STACK__STREAMS_WORKERS", "RAMPMETER_TOPICS__LANDING"):
            assert name in err


def test_config_check_covers_every_process_and_misspelt_names(rampmeter, monkeypatch):
    monkeypatch.setenv("RAMPMETER_GPU__SPEED", "-1")
    monkeypatch.setenv("RAMPMETER_AUTOSCALER__PERIOD_S", "x")
    monkeypatch.setenv("RAMPMETER_STREMS__POLICY", "ours")
    status, out, _ = rampmeter("config", "check", "--json")
    assert status == process.EXIT_CONFIG
    problems = json.loads(out)["problems"]
    assert [any(name in problem for problem in problems) for name in ("GPU__SPEED", "AUTOSCALER__PERIOD_S", "STREMS")]
    assert len(problems) == 3


def test_valid_settings_pass(rampmeter):
    assert rampmeter("config", "check", "--json") == (
        0,
        '{"problems":[]}\n',
        "the settings of all processes are valid\n",
    )


def test_a_consumer_that_would_be_killed_before_it_can_end_is_a_fault(rampmeter, monkeypatch):
    assert json.loads(rampmeter("config", "print", "--json")[1])["gpu"]["termination_s"] == 40.0
    monkeypatch.setenv("RAMPMETER_GPU__ENGINE", "vllm")
    monkeypatch.setenv("RAMPMETER_GPU__VLLM_MODEL", "any")
    assert json.loads(rampmeter("config", "print", "--json")[1])["gpu"]["termination_s"] == 47.0
    monkeypatch.setenv("RAMPMETER_GPU__ENGINE", "simulated")
    monkeypatch.setenv("RAMPMETER_GPU__GRACE_S", "60")
    status, out, _ = rampmeter("config", "check")
    assert status == process.EXIT_CONFIG
    assert "RAMPMETER_AUTOSCALER__GRACE_S=50: a consumer may take 80 s to end" in out


def test_config_print_tells_what_a_deployment_of_each_pool_follows_from(rampmeter, monkeypatch):
    pools = {"default": {"gpu_types": ["a100"], "role_gpu_types": {"short": ["l4", "t4"]}}, "cpu": {}}
    monkeypatch.setenv("RAMPMETER_POOLS", json.dumps(pools))
    found = json.loads(rampmeter("config", "print", "--json")[1])["pools"]
    assert found["default"]["models"] == ["llama-3-8b"]
    assert found["default"]["role_gpu_types"] == {"general": ["a100"], "short": ["l4", "t4"], "long": ["a100"]}
    assert found["cpu"]["role_gpu_types"] == {"general": [], "short": [], "long": []}
    for gpu_type, role, is_refused in (("a100", "long", False), ("a100", "short", True), ("t4", "short", False)):
        monkeypatch.setenv("RAMPMETER_GPU__GPU_TYPE", gpu_type)
        monkeypatch.setenv("RAMPMETER_GPU__ROLE", role)
        assert ("gpu.gpu_type 'a100'" in rampmeter("config", "check")[1]) == is_refused


def test_config_deployment_puts_consumers_on_the_nodes_of_their_gpu_types_and_lets_them_end(rampmeter, monkeypatch):
    pools = {"default": {"gpu_types": ["NVIDIA-A100-80GB"], "role_gpu_types": {"short": ["L4", "T4"]}}}
    pools |= {"cpu": {}, "Cpu_1": {}}
    monkeypatch.setenv("RAMPMETER_POOLS", json.dumps(pools))
    monkeypatch.setenv("RAMPMETER_GPU__GRACE_S", "29.5")
    roles = ("--role", "short", "--role", "long")
    status, out, _ = rampmeter("config", "deployment", "--image", "rampmeter:1", *roles, "--gpu-label", "gpu")
    assert status == 0
    found = {item["metadata"]["name"]: item["spec"] for item in json.loads(out)["items"]}
    pods = {name: spec["template"]["spec"] for name, spec in found.items()}
    labels = {name: pod.get("affinity", {}).get("nodeAffinity") for name, pod in pods.items()}
    assert labels == {
        f"rampmeter-gpu-{place}": types
        and {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": types}]}]
            }
        }
        for place, types in {
            "default-short": ["L4", "T4"],
            "default-long": ["NVIDIA-A100-80GB"],
            "cpu-short": None,
            "cpu-long": None,
            "cpu-1-short": None,
            "cpu-1-long": None,
        }.items()
    }
    assert {pod["terminationGracePeriodSeconds"] for pod in pods.values()} == {50}
    assert not any("replicas" in spec for spec in found.values())
    env = {one["name"]: one["value"] for one in pods["rampmeter-gpu-cpu-1-long"]["containers"][0]["env"]}
    assert (env["RAMPMETER_GPU__POOL"], env["RAMPMETER_GPU__ROLE"]) == ("Cpu_1", "long")


def test_an_autoscaler_that_goes_by_a_lag_that_nobody_has_is_a_fault(rampmeter, monkeypatch):
    monkeypatch.setenv("RAMPMETER_GPU__GROUP_PROTOCOL", "share")
    status, out, _ = rampmeter("config", "check")
    assert status == process.EXIT_CONFIG
    assert "RAMPMETER_GPU__GROUP_PROTOCOL=share: such a group has no lag" in out
    monkeypatch.setenv("RAMPMETER_AUTOSCALER__TARGET", "dry-run")
    assert rampmeter("config", "check")[0] == 0


def test_config_print_hides_secrets(rampmeter, monkeypatch):
    monkeypatch.setenv("RAMPMETER_KAFKA__SASL_PASSWORD", "hunter2")
    monkeypatch.setenv("RAMPMETER_REDIS__URL", "redis://user:hunter2@example:6379/0")
    status, out, err = rampmeter("config", "print", "--json")
    assert status == 0
    assert "hunter2" not in out + err
    assert json.loads(out)["streams"]["policy"] == "ours"
    status, out, _ = rampmeter("config", "print")
    assert "streams.policy = ours" in out
    assert "hunter2" not in out


def test_missing_config_file_is_a_configuration_error(rampmeter, monkeypatch):
    monkeypatch.setenv("RAMPMETER_CONFIG", "/nowhere.toml")
    status, _, err = rampmeter("config", "print")
    assert status == process.EXIT_CONFIG
    assert "/nowhere.toml" in err


def test_broken_trace_is_refused_before_anything_starts(rampmeter, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,service\n1,2,x,conv\n")
    status, out, err = rampmeter("replay", str(path))
    assert status == process.EXIT_CONFIG
    assert f"{path}:2:" in err
    assert out == ""


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("1d", 86400)])
def test_durations_read_as_people_write_them(text, seconds):
    assert durations.parse(text, "--since") == seconds
