import json

import pytest
from pydantic import ValidationError

from streams.settings import Streams, StreamsSettings
from topics import settings
from topics.errors import ConfigError
from topics.records import Priority

SECRET = "SECRET-of-more-than-thirty-two-bytes"


def load(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(f"RAMPMETER_{name}", value)
    return settings.load(StreamsSettings)


REFUSED = {
    "signed without keys": ({"IDENTITY__MODE": "signed"}, "neither keys nor key_files holds a key"),
    "topic without tenants": ({"IDENTITY__MODE": "topic"}, "identity.mode is topic, but topics.tenants names"),
    "a short key": ({"IDENTITY__KEYS": '{"a": "SECRET"}'}, "the key a has 6 bytes; HS256 wants 32 or more"),
    "keys that are no object": ({"IDENTITY__KEYS": "SECRET"}, "RAMPMETER_IDENTITY__KEYS"),
    "a file that is not there": ({"IDENTITY__KEY_FILES": '{"a": "/no/such"}'}, "key_files names /no/such: No such"),
    "a key in two places": (
        {"IDENTITY__KEYS": json.dumps({"a": SECRET}), "IDENTITY__KEY_FILES": '{"a": "/dev/null"}'},
        "the key a is in keys and in key_files",
    ),
    "tokens that outlive the memory of ids": (
        {"IDENTITY__MODE": "signed", "IDENTITY__KEYS": json.dumps({"a": SECRET}), "DEDUPE_WINDOW_S": "60"},
        "identity.max_token_age_s is above dedupe_window_s",
    ),
    "a limit of liveness within a deferral": (
        {"STREAMS__LIVE_AFTER_S": "30"}, "streams.live_after_s is not above the longest of topics.defer_delays_s",
    ),
    "a limit of liveness within a retry": (
        {"TOPICS__RETRY_DELAYS_S": "[1, 60]"}, "(60 s): a batch that waits as long as it should would look like",
    ),
    "a class that does not exist": (
        {"STREAMS__CLASSES__SOURCE": '{"production": "urgent"}'}, "RAMPMETER_STREAMS__CLASSES__SOURCE__PRODUCTION",
    ),
    "an attribute that does not exist": ({"STREAMS__CLASSES__MOOD": '{"good": "high"}'}, "STREAMS__CLASSES__MOOD"),
}  # fmt: skip


@pytest.mark.parametrize(("variables", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_at_the_start_by_name_and_without_secrets(monkeypatch, variables, words):
    with pytest.raises(ConfigError) as caught:
        load(monkeypatch, **variables)
    assert words in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("name", ["class_budgets", "max_wait_s"])
def test_every_class_has_a_budget_and_a_longest_wait(name):
    defaults = getattr(Streams(), name)
    with pytest.raises(ValidationError, match=f"{name} says nothing of the class low"):
        Streams(**{name: {Priority.HIGH: defaults[Priority.HIGH], Priority.MEDIUM: defaults[Priority.MEDIUM]}})


def test_a_budget_of_one_class_leaves_the_others_theirs(monkeypatch):
    section = load(monkeypatch, STREAMS__CLASS_BUDGETS='{"high": {"refill_units_per_s": 5}}').streams
    assert [section.class_budgets[priority].refill_units_per_s for priority in Priority] == [5.0, 50_000.0, 50_000.0]


@pytest.mark.parametrize("text", [f"{SECRET}\n", SECRET])
def test_keys_come_from_variables_from_files_and_from_the_settings_file(monkeypatch, tmp_path, text):
    key, config = tmp_path / "key", tmp_path / "rampmeter.toml"
    key.write_text(text)
    config.write_text(
        f'[identity]\nmode = "signed"\n[identity.keys]\nfrom_toml = "{SECRET}"\n'
        f'[identity.key_files]\nfrom_file = "{key}"\n'
    )
    loaded = load(monkeypatch, CONFIG=str(config), IDENTITY__KEYS__FROM_VARIABLE=SECRET)
    assert loaded.identity.secrets() == dict.fromkeys(("from_toml", "from_file", "from_variable"), SECRET)


def test_a_key_is_never_shown(monkeypatch, tmp_path):
    key = tmp_path / "key"
    key.write_text(SECRET)
    loaded = load(
        monkeypatch,
        IDENTITY__MODE="signed",
        IDENTITY__KEYS=json.dumps({"a": SECRET}),
        IDENTITY__KEY_FILES=json.dumps({"b": str(key)}),
    )
    shown = [settings.redacted_json(loaded), repr(loaded), str(loaded.identity)]
    assert not any("SECRET" in text for text in shown)
    again = loaded.model_copy(update={"identity": loaded.identity.model_copy(update={"keys": {}})})
    assert again.short_hash() != loaded.short_hash()


def test_the_hash_of_the_settings_does_not_follow_a_secret(monkeypatch):
    first = load(monkeypatch, IDENTITY__KEYS=json.dumps({"a": SECRET})).short_hash()
    assert load(monkeypatch, IDENTITY__KEYS=json.dumps({"a": SECRET[::-1]})).short_hash() == first


def test_class_rules_are_one_readable_section_that_adds_to_the_defaults(monkeypatch, tmp_path):
    config = tmp_path / "rampmeter.toml"
    config.write_text(
        """
[streams.classes.user_tier]
gold = "high"
anonymous = "medium"
[streams.classes.path]
"/v1/batch" = "low"
"*" = "high"
[streams.classes.tenant_cap]
my-team = "medium"
"""
    )
    classes = load(monkeypatch, CONFIG=str(config)).streams.classes
    assert classes.user_tier == {
        "vip": Priority.HIGH, "standard": Priority.MEDIUM, "anonymous": Priority.MEDIUM, "gold": Priority.HIGH,
    }  # fmt: skip
    assert classes.path == {"/v1/batch": Priority.LOW, "*": Priority.HIGH}
    assert classes.tenant_cap == {"my-team": Priority.MEDIUM}
    assert classes.source["background"] is Priority.LOW
