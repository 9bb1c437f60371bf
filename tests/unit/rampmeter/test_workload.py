import itertools
import statistics
from collections import Counter

import pytest

from rampmeter import workload
from rampmeter.workload import CODE, CONV, Prompts, Row
from topics.errors import ConfigError
from topics.records import Priority

HOUR_S = 3600.0


@pytest.fixture(scope="module")
def hours():
    """Several generated hours, since bursts make a single one vary."""
    return [workload.generate(HOUR_S, seed=seed) for seed in range(4)]


def gaps_cv(rows):
    gaps = [later.arrival_s - row.arrival_s for row, later in itertools.pairwise(rows)]
    return statistics.pstdev(gaps) / statistics.mean(gaps)


def busiest_second(rows):
    return max(Counter(int(row.arrival_s) for row in rows).values()) / (len(rows) / HOUR_S)


@pytest.mark.parametrize(
    ("service", "input_tokens", "output_tokens", "gap_cv"), [(CONV, 1155, 211, 1.1), (CODE, 2048, 28, 13)]
)
def test_generator_has_the_statistics_of_the_public_traces(hours, service, input_tokens, output_tokens, gap_cv):
    for rows in hours:
        mine = [row for row in rows if row.service == service.name]
        assert statistics.mean(row.input_tokens for row in mine) == pytest.approx(input_tokens, rel=0.1)
        assert statistics.mean(row.output_tokens for row in mine) == pytest.approx(output_tokens, rel=0.1)
        assert gaps_cv(mine) == pytest.approx(gap_cv, rel=0.2)


def test_chat_is_nearly_smooth_and_code_comes_in_bursts(hours):
    for rows in hours:
        assert busiest_second([row for row in rows if row.service == "conv"]) < 5
        assert 15 < busiest_second([row for row in rows if row.service == "code"]) < 45


def test_same_seed_same_load_and_another_seed_another():
    assert workload.generate(60, seed=7) == workload.generate(60, seed=7)
    assert workload.generate(60, seed=7) != workload.generate(60, seed=8)


def test_generate_count_returns_exactly_that_many_by_arrival():
    rows = workload.generate_count(500)
    assert len(rows) == 500
    assert rows == sorted(rows, key=lambda row: row.arrival_s)


def test_paced_keeps_the_shape_and_sets_the_rate():
    rows = [Row(10.0, 1, 1, "a"), Row(11.0, 1, 1, "a"), Row(14.0, 1, 1, "a")]
    assert [row.arrival_s for row in workload.paced(rows, rate_per_s=6.0)] == [0.0, 0.125, 0.5]


def test_paced_survives_rows_that_all_arrive_at_once():
    assert [row.arrival_s for row in workload.paced([Row(3.0, 1, 1, "a")] * 2, 1.0)] == [0.0, 0.0]


def test_mean_outputs_are_per_service():
    rows = [Row(0, 1, 10, "a"), Row(0, 1, 21, "a"), Row(0, 1, 5, "b")]
    assert workload.mean_outputs(rows) == {"a": 16, "b": 5}


def test_prompt_has_four_bytes_per_token():
    prompts = Prompts(longest_tokens=5000)
    for tokens in (1, 77, 5000):
        text = prompts.of(tokens)
        assert len(text) == 4 * tokens
        assert text.isascii()


HEADER = "arrival_s,input_tokens,output_tokens,service\n"


def trace(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_trace_is_read_up_to_the_limit_with_columns_in_any_order(tmp_path):
    path = trace(tmp_path, "service,output_tokens,arrival_s,input_tokens,x\nconv,4,0.5,3,?\ncode,6,1,5,?\n,,,\n")
    assert workload.read_trace(path, limit=2) == [Row(0.5, 3, 4, "conv"), Row(1.0, 5, 6, "code")]


def test_service_tenant_and_priority_may_be_left_out_or_said(tmp_path):
    bare = trace(tmp_path, "arrival_s,input_tokens,output_tokens\n0,1,2\n")
    assert workload.read_trace(bare) == [Row(0.0, 1, 2, workload.ONE_SERVICE)]
    full = trace(tmp_path, HEADER.strip() + ",tenant,priority\n0,1,2,a,t,high\n0,1,2,a,,\n")
    assert workload.read_trace(full) == [Row(0.0, 1, 2, "a", "t", Priority.HIGH), Row(0.0, 1, 2, "a")]


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("arrival_s,input_tokens\n1,2\n", [":1: no column output_tokens"]),
        ("", [":1: no column arrival_s"]),
        (HEADER, ["has no rows"]),
        (HEADER + "0,1,1,a\nx,1,1,a\n1,1.5,1,a\n", [":3: wants a number", ":4: wants a number"]),
        (HEADER + "0,1,1\n", [":2: wants a number"]),
        (HEADER + "0,0,1,a\n", [":2: token counts"]),
        (HEADER + "nan,1,1,a\n-1,1,1,a\n", [":2: arrival_s", ":3: arrival_s"]),
        (HEADER + "0,1,1, \n", [":2: service is empty"]),
        (HEADER + "2,1,1,a\n1,1,1,a\n", [":3: arrival_s 1 lies before"]),
        (HEADER.encode() + b"0,1,1,\xff\n", ["not a CSV in UTF-8"]),
    ],
)
def test_faults_of_a_trace_are_all_named_with_file_and_line(tmp_path, text, complaints):
    path = trace(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        workload.read_trace(path)
    assert len(caught.value.problems) == len(complaints)
    for problem, complaint in zip(caught.value.problems, complaints, strict=True):
        assert str(path) in problem
        assert complaint in problem


def test_at_most_ten_faults_are_listed(tmp_path):
    with pytest.raises(ConfigError) as caught:
        workload.read_trace(trace(tmp_path, HEADER + "x,1,1,a\n" * 50))
    assert len(caught.value.problems) == workload.MAX_PROBLEMS


def test_missing_trace_says_what_a_trace_is(tmp_path):
    with pytest.raises(ConfigError, match=r"No such file.*arrival_s"):
        workload.read_trace(tmp_path / "none.csv")
