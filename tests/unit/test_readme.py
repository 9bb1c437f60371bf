"""The README says what the code says."""

import re

from autoscaler.settings import AutoscalerSettings
from streams.settings import StreamsSettings
from tests.support import readme
from topics.outcomes import Outcome
from topics.settings import load


def test_the_tables_are_those_of_the_code():
    text = readme.README.read_text()
    assert readme.render(text) == text, "run `python -m tests.support.readme`"


def test_every_outcome_is_explained():
    assert set(readme.MEANINGS) == set(Outcome)


def test_the_settings_file_is_one_that_loads(tmp_path, monkeypatch):
    (example,) = re.findall(r"```toml\n(.*?)```", readme.README.read_text(), flags=re.DOTALL)
    (tmp_path / "example.toml").write_text(example)
    monkeypatch.setenv("RAMPMETER_CONFIG", str(tmp_path / "example.toml"))
    loaded = load(StreamsSettings)
    assert loaded.models["my-70b"].kind == "revenue"
    assert loaded.streams.tenant_budgets["my-team"].refill_units_per_s == 4000
    assert load(AutoscalerSettings).autoscaler.scaled["default"].priority == 10
