import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.metrics import GenAi
from tests.support.builders import WALL_S
from topics.outcomes import Outcome, Reason
from topics.records import Reply, Tokens
from topics.timing import Timing

NAMED = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "vllm", "gen_ai_request_model": "llama-3-8b"}
DONE = Reply(
    id="r1", outcome=Outcome.COMPLETED, model="llama-3-8b", tokens=Tokens(prompt=100, output=11),
    timing=Timing(arrived_s=WALL_S - 9, started_s=WALL_S, first_token_s=WALL_S + 0.5, finished_s=WALL_S + 2.5),
)  # fmt: skip


@pytest.fixture
def shown():
    """Answers replies, and tells the sum and count of a family's series."""
    registry = CollectorRegistry()
    made = GenAi(registry, "vllm")

    def show(*replies):
        for reply in replies:
            made.answered(reply)

        def read(name, **labels):
            return tuple(registry.get_sample_value(f"gen_ai_{name}_{end}", NAMED | labels) for end in ("sum", "count"))

        return read

    return show


def test_a_completed_run_has_its_times_from_its_start_in_the_engine_and_its_tokens(shown):
    read = shown(DONE)
    assert read("server_request_duration_seconds", error_type="") == (2.5, 1)
    assert read("server_time_to_first_token_seconds") == (0.5, 1)
    assert read("server_time_per_output_token_seconds") == (pytest.approx(0.2), 1)
    assert read("client_token_usage", gen_ai_token_type="input") == (100, 1)
    assert read("client_token_usage", gen_ai_token_type="output") == (11, 1)


def test_a_failed_run_has_its_reason_and_no_time_to_a_token(shown):
    read = shown(msgspec.structs.replace(DONE, outcome=Outcome.FAILED, reason=Reason.ENGINE_ERROR))
    assert read("server_request_duration_seconds", error_type="engine_error") == (2.5, 1)
    assert read("server_request_duration_seconds", error_type="") == (0, 0)
    assert read("server_time_to_first_token_seconds") == (0, 0)


def test_one_token_has_none_after_the_first(shown):
    read = shown(msgspec.structs.replace(DONE, tokens=Tokens(prompt=100, output=1)))
    assert read("server_time_per_output_token_seconds") == (0, 0)


def test_what_never_reached_the_engine_is_no_run(shown):
    read = shown(msgspec.structs.replace(DONE, timing=Timing(arrived_s=WALL_S, finished_s=WALL_S + 1)))
    assert read("server_request_duration_seconds", error_type="") == (None, None)
