import pytest

from rampmeter.console.permission import Permission
from rampmeter.console.settings import Console, ConsoleSettings
from topics.errors import ConfigError
from topics.settings import load, redacted_json

TOKEN = "TOKEN-of-sixteen-or-more"


def test_without_a_token_nobody_may():
    permission = Permission.of(Console())
    assert not permission.is_possible
    assert not permission.allows(None)
    assert not permission.allows("Bearer ")


def test_the_token_itself_may_from_a_setting_or_a_file(tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for console in (Console(token=TOKEN), Console(token_file=tmp_path / "token")):
        permission = Permission.of(console)
        assert permission.is_possible
        assert permission.allows(f"Bearer {TOKEN}")
        assert permission.allows(f"bearer  {TOKEN}")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \udcff"]
)
def test_whatever_else_may_not(header):
    assert not Permission.of(Console(token=TOKEN)).allows(header)


@pytest.mark.parametrize(
    "fields", [{"token": "short"}, {"token": ""}, {"token": TOKEN, "token_file": "x"}, {"token_file": "/none"}]
)
def test_a_token_that_cannot_be_one_ends_the_start_and_is_not_repeated(fields):
    with pytest.raises(ConfigError) as raised:
        Permission.of(Console.model_validate(fields))
    assert TOKEN not in str(raised.value)


def test_settings_are_shown_without_the_token(monkeypatch):
    monkeypatch.setenv("RAMPMETER_CONSOLE__TOKEN", TOKEN)
    assert TOKEN not in redacted_json(load(ConsoleSettings))
