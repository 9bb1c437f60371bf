import importlib.util

import pytest

from rampmeter.simulation import compiled
from topics.errors import DependencyDown


def test_what_is_compiled_is_there():
    assert [name for name in compiled.MODULES if not (compiled._ROOT / name).is_file()] == []


def test_without_mypyc_it_is_said_what_is_needed_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DependencyDown, match=r"no mypyc.*C compiler; without --compiled it runs"):
        compiled.ensure(tmp_path, print)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_compile_leaves_its_log_and_no_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "MODULES", ("gpu_consumers/no_such_module.py",))
    with pytest.raises(DependencyDown, match=r"could not be compiled .*simulator\.log"):
        compiled.ensure(tmp_path, print)
    assert [path.name for path in tmp_path.iterdir()] == ["simulator.log"]
