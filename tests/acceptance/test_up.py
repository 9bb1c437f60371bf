"""The whole stack on its embedded parts, used as a user would."""

import json
import urllib.request

import pytest

from tests.support import command
from tests.support.streams_worker import wait_until

READY_S = 20.0


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    env = {"RAMPMETER_GPU__SPEED": "20"}
    with command.Up(cwd=tmp_path_factory.mktemp("up"), env=env) as running:
        yield running


def test_ready_soon_and_says_where_everything_is(up):
    assert up.took_s < READY_S
    said = up.said()
    for name in ("kafka", "redis", "streams-1", "autoscaler", "gpu-llama", "rampmeter submit"):
        assert name in said


def test_every_process_is_live_and_ready_and_has_metrics(up):
    for where in up.endpoints().values():
        if where.startswith("http"):
            for path in ("livez", "readyz", "metrics"):
                with urllib.request.urlopen(f"{where}/{path}", timeout=5) as answer:
                    assert answer.status == 200
                    assert path != "metrics" or b"rampmeter_" in answer.read()


def test_prometheus_is_told_of_every_process_also_of_those_that_the_autoscaler_starts(up):
    path = up.cwd / ".rampmeter" / "targets.json"

    def told():
        (group,) = json.loads(path.read_text()) if path.exists() else [{"targets": []}]
        return set(group["targets"])

    shown = {where.removeprefix("http://") for where in up.endpoints().values() if where.startswith("http")}
    wait_until(lambda: len(told()) > len(shown) and told() >= shown, 30, lambda: f"{told()} of {shown}")


def test_submit_prints_the_answer(up):
    done = up.run("submit", "hello", "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_submit_streams_a_real_models_text(up):
    done = up.run("submit", "Say hello.", "--model", "smollm2-135m", "--max-tokens", "12", "--stream")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 1


def test_submit_json_is_the_reply_in_one_line(up):
    reply = command.one_line_of_json(up.run("submit", "hello", "--json", "--id", "json-1", "--tenant", "acme"))
    assert (reply["id"], reply["outcome"], reply["tenant"]) == ("json-1", "completed", "acme")
    assert reply["body"]["object"] == "chat.completion"


def test_same_id_again_gets_the_first_answer(up):
    first = command.one_line_of_json(up.run("submit", "hello", "--json", "--id", "twice"))
    again = command.one_line_of_json(up.run("submit", "hello", "--json", "--id", "twice"))
    assert again["repeat"]
    assert again["body"] == first["body"]


@pytest.mark.parametrize(
    ("args", "outcome", "reason"),
    [
        (("--model", "gpt-17"), "rejected_invalid", "unknown_model"),
        (("--max-tokens", "999999999"), "rejected_invalid", "max_tokens"),
    ],
)
def test_rejection_is_status_1_with_the_reason(up, args, outcome, reason):
    done = up.run("submit", "hello", "--json", *args)
    assert done.returncode == 1
    reply = command.one_line_of_json(done)
    assert (reply["outcome"], reply["reason"]) == (outcome, reason)
    assert reason in done.stderr


def test_no_answer_in_time_is_status_1_and_says_so(up):
    done = up.run("submit", "hello", "--timeout-s", "0.1", "--max-tokens", "4000", "--id", "late")
    assert done.returncode == 1
    assert "no answer to late within 0.1 s" in done.stderr


def test_lag_shows_every_lane(up):
    lanes = command.one_line_of_json(up.run("lag", "--json"))["lanes"]
    assert {lane["pool"] for lane in lanes} == {"default", "cpu"}
    assert "RECORDS" in up.run("lag").stdout


def test_topics_can_be_applied_again_and_differences_name_both_numbers(up):
    assert command.one_line_of_json(up.run("topics", "apply", "--json")) == {"created": [], "configs": []}
    kafka = {"RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": up.endpoints()["kafka"]}
    assert up.run("topics", "check", env=kafka).returncode == 0
    done = up.run("topics", "check", env={**kafka, "RAMPMETER_TOPICS__LANDING_PARTITIONS": "7"})
    assert done.returncode == 78
    assert "requests.high.short has 4 partitions, the settings want 7" in done.stdout


def test_second_stack_in_the_same_folder_is_refused(up):
    done = up.run("up")
    assert done.returncode == 69
    assert "already runs on this data directory" in done.stderr


def test_audit_finds_nothing_lost_or_doubled_and_then_the_stack_ends_in_order(up):
    done = up.run("audit", "--json")
    assert done.returncode == 0, done.stdout
    found = command.one_line_of_json(done)
    assert found["sent"] > 0
    assert (found["lost"], found["duplicates"]) == (0, 0)
    assert up.stop() == 0
    for name in ("stack.json", "targets.json"):
        assert not (up.cwd / ".rampmeter" / name).exists()
    assert json.dumps(found)
