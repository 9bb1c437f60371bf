"""Numbers that nobody of ours can have written make a record unreadable, so that none is reckoned with."""

import json

import pytest

from tests.support.builders import usage, work
from topics import bounds, codec
from topics.notes import Balances, Estimate
from topics.records import Tokens
from topics.telemetry import Telemetry

NOW_S = 1_700_000_000.0
TELEMETRY = Telemetry(consumer="c", pool="default", state="ready", at_s=NOW_S)
ESTIMATE = Estimate(tenant="t", model="m", template="", at_s=NOW_S, samples=9)
HUGE = 10**400
DECODE = {
    "usage": (usage(), codec.decode_usage),
    "telemetry": (TELEMETRY, codec.decode_telemetry),
    "estimate": (ESTIMATE, codec.decode_estimate),
    "work": (work(), codec.decode_work),
    "balances": (Balances(at_s=NOW_S, by="w", levels={}), codec.decode_balances),
}


def changed(kind, place, value):
    record, decode = DECODE[kind]
    fields = json.loads(codec.encode(record))
    *path, name = place.split(".")
    inner = fields
    for part in path:
        inner = inner[part]
    inner[name] = value
    return decode, json.dumps(fields).encode()


ABSURD = {
    "usage": {
        "attempt": [0, -1, 2**31, 2**70, HUGE],
        "tokens.prompt": [-1, 2**31, HUGE],
        "tokens.output": [-1, HUGE],
        "tokens.cached": [-1, HUGE],
        "reserved_units": [-1.0, 1e16, 1e308, HUGE],
        "finished_s": [-1.0, NOW_S * 1000, HUGE],
        "coefficient": [0.0, -1.0, 1e308],
        **dict.fromkeys(("engine_s", "service_s", "kv_token_s", "expected_kv_token_s"), (-1.0, 1e308)),
        **dict.fromkeys(("expected_prompt_tokens", "expected_output_tokens"), (-1, HUGE)),
    },
    "telemetry": {
        "at_s": [-1.0, NOW_S * 1000],
        "lanes": [{"lane": [-5]}, {"lane": [0, HUGE]}],
        **dict.fromkeys(
            (
                "queued_units", "inflight_units", "dispatched_units_total", "finished_units_total", "latency_ewma_s",
                "gpu_memory_used_ratio", "capacity_units_per_s", "capacity_units",
            ),
            (-5.0, 1e308),
        ),
        **dict.fromkeys(("inflight_requests", "free_kv_tokens", "total_kv_tokens"), (-1, HUGE)),
        "gpu_temperature_c": [-1e9, 1e308],
    },
    "estimate": {
        "at_s": [-1.0, 1e308],
        "samples": [-1, HUGE],
        "output_tokens": [-1e9, 1e308],
        "service_s": [-5.0, 1e308],
        "prompt_ratio": [0.0, -1.0, 1e308],
        "coefficient": [0.0, -1.0, 1e308],
    },
    "work": {
        "price.cost_units": [-1.0, 1e308],
        "price.expected_output_tokens": [-1, HUGE],
        "price.coefficient": [0.0, -1.0],
        "price.kv_token_s": [-1.0, 1e308],
        "price.service_s": [-1.0, 1e308],
        "attempt": [0, -1, 2**70],
        "deferrals": [-1, 2**70],
        "admitted_s": [-1.0, 1e308],
    },
    "balances": {"at_s": [-1.0, 1e308], "levels": [{"tenant:a": None}, {"tenant:a": HUGE}]},
}  # fmt: skip
CASES = [(kind, name, value) for kind, names in ABSURD.items() for name, values in names.items() for value in values]


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=lambda value: str(value)[:20])
def test_an_absurd_number_makes_its_record_unreadable(kind, name, value):
    decode, raw = changed(kind, name, value)
    with pytest.raises(codec.UNREADABLE):
        decode(raw)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(("kind", "name"), [("usage", "reserved_units"), ("telemetry", "capacity_units")])
def test_what_is_no_number_makes_its_record_unreadable(kind, name, word):
    decode, raw = changed(kind, name, "WORD")
    with pytest.raises(codec.UNREADABLE):
        decode(raw.replace(b'"WORD"', word.encode()))


def test_the_largest_real_numbers_are_read():
    much = usage(attempt=1000, tokens=Tokens(prompt=10**7, output=10**7), reserved_units=1e12, service_s=1e6)
    assert codec.decode_usage(codec.encode(much)) == much
    assert codec.decode_work(codec.encode(work(None, {"cost_units": 0.0, "service_s": 0.0}))).price.cost_units == 0.0
    debt = Balances(at_s=NOW_S, by="w", levels={"tenant:a": -1e12})
    assert codec.decode_balances(codec.encode(debt)) == debt


@pytest.mark.parametrize(
    ("value", "count"),
    [(5, 5), (5.9, 5), (0, 0), (-3, 0), (10**400, bounds.MAX_COUNT), (1e308, bounds.MAX_COUNT), (None, 0), ("9", 0)],
)
def test_a_foreign_number_is_held_to_the_bounds_of_a_count(value, count):
    assert bounds.count(value) == count
