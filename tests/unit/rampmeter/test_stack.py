import pytest

from rampmeter import stack
from rampmeter.settings import StackSettings
from tests.support.clock import FakeClock
from topics.errors import ConfigError


def test_a_stack_whose_workers_would_be_shadows_is_refused_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("RAMPMETER_STREAMS__SHADOW", "small")
    said = []
    plan = stack.Plan(tmp_path / "data")
    with (
        pytest.raises(ConfigError, match="RAMPMETER_STREAMS__SHADOW"),
        stack.running(StackSettings(), plan, FakeClock(), said.append),
    ):
        pass
    assert (said, plan.data_dir.exists()) == ([], False)
