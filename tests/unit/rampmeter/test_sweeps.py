"""The sweeps behind the defaults, on tiny slices of `tests.benchmarks.sweeps`."""

import json
from functools import reduce

import pytest

from gpu_consumers.settings import GpuSettings
from rampmeter.hindsight import overrides
from rampmeter.workload import Row
from streams.settings import StreamsSettings
from tests.benchmarks import batch_windows, refusal_bound, sweeps
from tests.benchmarks.knobs import KNOBS
from topics.records import Length


def default_of(name):
    kind = next(kind for kind in (GpuSettings(), StreamsSettings()) if name in set(overrides.names(kind)))
    return reduce(lambda part, key: part[key] if isinstance(part, dict) else getattr(part, key), name.split("."), kind)


@pytest.mark.parametrize("name", KNOBS)
def test_the_defaults_are_among_what_is_tried(name):
    assert any(all(default_of(key) == tried for key, tried in value.items()) for value in KNOBS[name].values)


def test_a_sweep_prints_a_table_and_ends_with_its_figures_in_one_line(monkeypatch, capsys):
    arguments = "--only long_prefill --trace mix --loads 1.1 --rows 400 --offsets 1 --json"
    monkeypatch.setattr("sys.argv", ["sweeps", *arguments.split()])

    sweeps.main()

    table, line = capsys.readouterr().out.rstrip().rsplit("\n", 1)
    found = json.loads(line)["long_prefill"]["mix"]
    assert len(found) == len(KNOBS["long_prefill"].values)
    assert all(f"| {value} |" in table for value in found)
    assert found["long_prefill_tokens 320"]["1.1"]["e2e_gain"] > found["long_prefill_tokens None"]["1.1"]["e2e_gain"]


def test_what_cannot_be_begun_in_time_is_lost_in_the_best_of_orders_too():
    limits_s = {Length.SHORT: 5.0, Length.LONG: 25.0}
    one, other = (0.0, Length.SHORT, 10.0, 100), (0.0, Length.LONG, 10.0, 300)
    assert refusal_bound.least_lost([one, other], limits_s, units_per_s=1.0, stay_s=0.0) == (0.125, 15.0)
    assert refusal_bound.least_lost([one, other], limits_s, units_per_s=1.0, stay_s=5.0) == (0.0, 20.0)


def test_a_batch_waits_for_its_window_at_most_and_not_at_all_when_it_is_full():
    lone = batch_windows.served([(0.0, Row(0.0, 100, 10, "a"))], 0.5)
    crowd = batch_windows.served([(0.0, Row(0.0, 100, 10, "a"))] * batch_windows.SIZE, 0.5)
    assert (lone.waits_s, lone.sizes) == ([0.5], [1])
    assert (crowd.waits_s, crowd.sizes) == ([0.0] * batch_windows.SIZE, [batch_windows.SIZE])
