import json
import random

import msgspec
import pytest

from streams.policy import history
from streams.policy.history import Kind, Rules, Sample
from tests.support.builders import request, usage
from topics.outcomes import Outcome
from topics.records import Tokens

KIND = Kind("acme", "llama-3-8b", "t1")
RULES = Rules(quantile=0.9, min_samples=20, refresh_s=900.0)
NOW_S = 1000.0


def known(*rows, now_s=NOW_S):
    return history.estimate(KIND, rows, now_s, RULES)


def samples(count, output=100, service_s=1.0, ratio=1.0):
    return [Sample(output, service_s, ratio)] * count


def test_nothing_is_said_before_enough_were_seen():
    few = known(history.add({}, samples(19)))
    assert (few.output_tokens, few.service_s, few.prompt_ratio, few.samples) == (None, None, None, 19)
    enough = known(history.add({}, samples(20)))
    assert None not in (enough.output_tokens, enough.service_s, enough.prompt_ratio)


@pytest.mark.parametrize("tokens", [1, 2, 3, 10, 100])
def test_a_length_that_never_varies_is_learned_almost_exactly(tokens):
    learned = known(history.add({}, samples(30, output=tokens))).output_tokens
    assert tokens <= learned <= 1.09 * tokens
    assert learned == int(learned)


def test_windows_are_merged_and_each_part_counts_its_own_samples():
    rows = [history.add({}, [Sample(10, None, None)] * 15), history.add({}, [Sample(1000, 3.0, None)] * 15)]
    both = known(*rows)
    assert both.samples == 30
    assert 1000 <= both.output_tokens <= 1090
    assert both.service_s is None
    assert both.prompt_ratio is None


def test_the_learned_output_covers_nine_of_ten_requests():
    rng = random.Random(9)
    lengths = [max(1, round(rng.lognormvariate(5, 1))) for _ in range(3000)]
    learned = known(history.add({}, [Sample(length, None, None) for length in lengths])).output_tokens
    covered = sum(length <= learned for length in lengths) / len(lengths)
    assert 0.9 <= covered <= 0.93


def test_the_prompt_ratio_is_the_middle_one_and_not_the_quantile():
    row = history.add({}, [*samples(40, ratio=4.0), *samples(20, ratio=50.0)])
    assert known(row).prompt_ratio == 4.0


def test_a_row_survives_json_and_stays_small_whatever_is_counted():
    rng = random.Random(1)
    row = {}
    for _ in range(50):
        some = [Sample(rng.randint(1, 130_000), 10 ** rng.uniform(-12, 12), 10 ** rng.uniform(-12, 12))] * 40
        row = json.loads(json.dumps(history.add(row, some)))
    assert known(row).samples == 2000
    assert len(json.dumps(row)) < 3 * 513 * 12


@pytest.mark.parametrize("fields", [{"outcome": Outcome.FAILED}, {"outcome": Outcome.CANCELLED}, {"partial": True}])
def test_only_whole_answers_teach(fields):
    assert history.sample(usage(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Sample(50, None, None)),
        ({"service_s": 2.5}, Sample(50, 2.5, None)),
        ({"expected_prompt_tokens": 25}, Sample(50, None, 4.0)),
        ({"expected_prompt_tokens": 25, "tokens": Tokens(prompt=0, output=50)}, Sample(50, None, None)),
        ({"expected_prompt_tokens": 0}, Sample(50, None, None)),
    ],
)
def test_what_is_unknown_of_a_usage_is_not_learned_as_zero(fields, expected):
    assert history.sample(usage(**fields)) == expected


def test_requests_for_several_choices_are_a_kind_of_their_own():
    assert history.template(request(template="t1")) == "t1"
    assert history.template(request(template="t1", choices=4)) == "t1*4"


BASE = known(history.add({}, samples(30, output=100, service_s=1.0)))


@pytest.mark.parametrize(
    ("old", "fields", "expected"),
    [
        (None, {}, True),
        (None, {"output_tokens": None, "service_s": None, "prompt_ratio": None}, False),
        (BASE, {"at_s": NOW_S + 10}, False),
        (BASE, {"at_s": NOW_S + 900}, True),
        (BASE, {"output_tokens": BASE.output_tokens * 1.09}, False),
        (BASE, {"output_tokens": BASE.output_tokens * 1.11}, True),
        (BASE, {"service_s": BASE.service_s * 0.8}, True),
        (BASE, {"prompt_ratio": None}, True),
        (BASE, {"samples": 1000}, False),
    ],
)
def test_news_is_what_changes_a_decision_or_keeps_an_estimate_alive(old, fields, expected):
    assert history.is_news(old, msgspec.structs.replace(BASE, **fields), RULES) is expected
