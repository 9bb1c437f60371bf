import base64
import json

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import tokens
from topics.records import Priority
from topics.tokens import BadToken, Token

OLD, NEW = "o" * 32, "n" * 32
KEYS = {"old": OLD, "new": NEW}
TOKEN = Token(id="r1", tenant="acme", priority=Priority.HIGH, sha256="ab", iat=1000.5, exp=1060.0)


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def made(payload, key=OLD, algorithm="HS256", kid="old"):
    """A token as another library would make it."""
    return jwt.encode(payload, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})


KID = {"kid": "old"}
FULL = {"id": "r1", "tenant": "acme", "priority": "high", "sha256": "ab", "iat": 1000.5, "exp": 1060}


def test_what_is_sealed_is_read_again():
    for key_id, secret in KEYS.items():
        assert tokens.unseal(tokens.seal(TOKEN, key_id, secret), KEYS) == TOKEN


def test_any_jwt_library_can_sign_and_add_claims_of_its_own():
    assert tokens.unseal(made({**FULL, "iss": "gateway"}), KEYS) == TOKEN


def test_the_sealed_text_is_a_jwt_for_any_library():
    options = {"verify_iat": False, "verify_exp": False}
    assert jwt.decode(tokens.seal(TOKEN, "new", NEW), NEW, algorithms=["HS256"], options=options) == FULL


BAD = {
    "nothing": ("", "malformed"),
    "words": ("let me in", "malformed"),
    "two parts": ("a.b", "malformed"),
    "a header without end": (base64.urlsafe_b64encode(b'{"a":' * 1200).decode() + ".e30.x", "malformed"),
    "a word that is not ascii": ("é.e30.x", "malformed"),
    "bytes that are no JSON": ("eyJ.eyJ.eyJ", "malformed"),
    "a header that is a list": (f"{part([])}.{part(FULL)}.x", "malformed"),
    "no key id": (made(FULL, kid=None), "unknown_key"),
    "a key id that is a number": (f"{part({'alg': 'HS256', 'kid': 7})}.{part(FULL)}.x", "malformed"),
    "a retired key": (made(FULL, kid="older"), "unknown_key"),
    "the other key": (made(FULL, key=NEW), "signature"),
    "no algorithm": (f"{part({'alg': 'none', 'kid': 'old'})}.{part(FULL)}.", "signature"),
    "an algorithm in capitals": (f"{part({'alg': 'NONE', 'kid': 'old'})}.{part(FULL)}.", "signature"),
    "a stronger algorithm": (made(FULL, key=OLD * 2, algorithm="HS512"), "signature"),
    "no signature": (made(FULL).rsplit(".", 1)[0] + ".", "signature"),
    "no priority": (made({k: v for k, v in FULL.items() if k != "priority"}), "malformed"),
    "a class that does not exist": (made({**FULL, "priority": "urgent"}), "malformed"),
    "a digest that is null": (made({**FULL, "sha256": None}), "malformed"),
    "a time in words": (
        tokens._jws.encode(json.dumps({**FULL, "exp": "soon"}).encode(), OLD, headers=KID),
        "malformed",
    ),
    "a list of claims": (tokens._jws.encode(b"[]", OLD, headers=KID), "malformed"),
    "text that is not utf-8": (tokens._jws.encode(b'{"id":"\xff"}', OLD, headers=KID), "malformed"),
}


@pytest.mark.parametrize(("text", "why"), BAD.values(), ids=BAD)
def test_what_proves_nothing_is_refused_with_a_word(text, why):
    with pytest.raises(BadToken) as caught:
        tokens.unseal(text, KEYS)
    assert caught.value.why == why


@given(text=st.text(max_size=40) | st.tuples(st.text(max_size=9), st.text(max_size=9)).map(".e30.".join))
def test_any_text_is_a_token_or_a_bad_one(text):
    with pytest.raises(BadToken):
        tokens.unseal(text, KEYS)


def test_a_changed_claim_breaks_the_signature():
    head, _, signature = made(FULL).split(".")
    with pytest.raises(BadToken, match="signature"):
        tokens.unseal(f"{head}.{part({**FULL, 'tenant': 'evil'})}.{signature}", KEYS)


def test_a_secret_that_cannot_be_used_is_described_without_being_shown():
    short, pem = "hunter2", "-----BEGIN RSA PRIVATE KEY-----" + "x" * 40
    found = tokens.faults({"a": short, "b": pem, "c": OLD})
    assert found == {
        "a": "has 7 bytes; HS256 wants 32 or more",
        "b": "is a PEM file; HS256 wants a secret that both sides share",
    }
