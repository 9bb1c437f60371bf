import json

import pytest

from rampmeter import submit
from rampmeter.client import Ask
from rampmeter.settings import StackSettings
from rampmeter.signing import Signer
from tests.support.clock import FakeClock
from topics import settings, tokens
from topics.errors import ConfigError
from topics.records import Priority
from topics.tokens import Token

SECRET = "SECRET-of-more-than-thirty-two-bytes"
TOKEN = Token(id="x", tenant="acme", priority=Priority.LOW, sha256="", iat=1, exp=2)


def load(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(f"RAMPMETER_SIGNING__{name}", value)
    return settings.load(StackSettings)


def test_without_a_key_nothing_is_signed(monkeypatch):
    assert Signer.of(load(monkeypatch).signing) is None


def test_the_secret_comes_from_a_variable_or_from_a_file(monkeypatch, tmp_path):
    by_variable = Signer.of(load(monkeypatch, KEY_ID="a", SECRET=SECRET, VALID_S="30").signing)
    monkeypatch.delenv("RAMPMETER_SIGNING__SECRET")
    (tmp_path / "secret").write_text(SECRET + "\n")
    by_file = Signer.of(load(monkeypatch, SECRET_FILE=str(tmp_path / "secret")).signing)
    assert by_variable == by_file
    assert by_file.valid_s == 30
    assert tokens.unseal(by_file.seal(TOKEN), {"a": SECRET}) == TOKEN


@pytest.mark.parametrize(
    "variables",
    [{"KEY_ID": "a"}, {"SECRET": SECRET}, {"KEY_ID": "a", "SECRET": SECRET, "SECRET_FILE": "/dev/null"}],
    ids=json.dumps,
)
def test_half_a_key_is_refused(monkeypatch, variables):
    with pytest.raises(ConfigError, match=r"RAMPMETER_SIGNING .*either secret or secret_file") as caught:
        load(monkeypatch, **variables)
    assert "SECRET-" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SECRET": "SECRET"}, "the secret of signing.key_id a has 6 bytes"),
        ({"SECRET_FILE": "/no/such"}, "/no/such cannot be read"),
        ({"SECRET_FILE": "/dev/null"}, "the secret of signing.key_id a has 0 bytes"),
    ],
)
def test_a_secret_that_cannot_sign_is_reported_without_being_shown(monkeypatch, variables, words):
    with pytest.raises(ConfigError, match=words) as caught:
        Signer.of(load(monkeypatch, KEY_ID="a", **variables).signing)
    assert "SECRET" not in str(caught.value).replace("secret", "")


def test_the_secret_is_never_shown(monkeypatch):
    loaded = load(monkeypatch, KEY_ID="a", SECRET=SECRET)
    shown = [settings.redacted_json(loaded), repr(loaded), repr(Signer.of(loaded.signing))]
    assert not any("SECRET" in text for text in shown)


class _Asked(Exception):
    pass


def test_submit_signs_with_the_key_of_the_settings(monkeypatch):
    signers = []

    def client(_settings, _clock, _reply_topic, signer):
        signers.append(signer)
        raise _Asked

    monkeypatch.setattr(submit, "Client", client)
    monkeypatch.setattr(submit.clients, "require_kafka", lambda _settings: None)
    for variables in ({}, {"KEY_ID": "a", "SECRET": SECRET}):
        loaded = load(monkeypatch, **variables)
        with pytest.raises(_Asked):
            submit.run(loaded, Ask([]), submit.Route(None, 1.0), FakeClock(), None)
    assert [signer and signer.key_id for signer in signers] == [None, "a"]
