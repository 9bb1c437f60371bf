import pytest

from rampmeter.door.keys import Caller, Keys
from rampmeter.door.settings import Door, DoorSettings
from topics.errors import ConfigError
from topics.records import Priority
from topics.settings import load, redacted_json

SECRET = "SECRET-of-sixteen-or-more"


def door(**fields):
    return Door.model_validate(fields)


def test_a_key_stands_for_its_tenant_and_highest_class():
    keys = Keys.of(door(keys={"web": {"secret": SECRET, "tenant": "acme", "priority": "high", "user_tier": "vip"}}))
    assert keys.caller(f"Bearer {SECRET}") == Caller("web", "acme", Priority.HIGH, "vip")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", f"Bearer {SECRET}x"])
def test_whatever_is_no_key_is_nobody(header):
    keys = Keys.of(door(keys={"web": {"secret": SECRET, "tenant": "acme"}}))
    assert keys.caller(header) is None


def test_keys_come_from_files_too(tmp_path):
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "keys.toml").write_text(f'[web]\nsecret_file = "{tmp_path / "secret"}"\ntenant = "acme"\n')
    keys = Keys.of(door(keys_file=tmp_path / "keys.toml"))
    assert keys.caller(f"bearer {SECRET}").tenant == "acme"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, "nobody may enter"),
        ({"keys": {"a": {"tenant": "t"}}}, "either secret or secret_file"),
        ({"keys": {"a": {"tenant": "t", "secret": "SECRET-short"}}}, "12 characters"),
        ({"keys": {n: {"tenant": "t", "secret": SECRET} for n in "ab"}}, "its secret is that of a too"),
        ({"keys": {"a": {"tenant": "t", "secret_file": "/nowhere"}}}, "cannot be read as text"),
    ],
)
def test_a_fault_of_the_keys_is_named_and_no_secret_shown(fields, fault):
    with pytest.raises(ConfigError, match=fault) as raised:
        Keys.of(door(**fields))
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("text", ["web = SECRET", '[web]\nsecret = "SECRET-of-sixteen-or-more"\ntenant = "a b"\n'])
def test_a_file_of_keys_that_cannot_be_used_is_named_and_no_secret_shown(tmp_path, text):
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"keys\.toml") as raised:
        Keys.of(door(keys_file=tmp_path / "keys.toml"))
    assert "SECRET" not in str(raised.value)


def test_printed_settings_hold_no_key(monkeypatch):
    monkeypatch.setenv("RAMPMETER_DOOR__KEYS", f'{{"web": {{"secret": "{SECRET}", "tenant": "acme"}}}}')
    settings = load(DoorSettings)
    assert SECRET not in redacted_json(settings) + repr(settings)
