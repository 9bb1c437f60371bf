"""The sealed token of a request, for `identity.mode` signed: a JWT with HS256, its key named by `kid`.

Says who asks for what and proves it; whether it is still good is the reader's decision.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import jwt
import msgspec

from topics import codec
from topics.records import Priority, Record

ALGORITHM = "HS256"
MIN_SECRET_BYTES = 32
"""As many as the digest has (RFC 7518, 3.2)."""

_jws = jwt.PyJWS(options={"enforce_minimum_key_length": True})


class Token(Record, frozen=True, kw_only=True):
    """What a signer vouches for; `iat` and `exp` are Unix seconds."""

    id: str
    tenant: str
    priority: Priority
    sha256: str
    """Of the record's whole value, in hex: of the body, or of the envelope with all that it claims."""
    iat: float
    exp: float
    user_tier: str | None = None
    source: str | None = None
    path: str | None = None
    reply_topic: str | None = None


class BadToken(ValueError):
    """A text that proves nothing; `why` says in a word what is wrong with it."""

    def __init__(self, why: Literal["malformed", "unknown_key", "signature"]) -> None:
        super().__init__(why)
        self.why = why


def faults(secrets: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with secrets, by key id; no part of a secret is in it."""
    found = {}
    for key_id, secret in secrets.items():
        size_bytes = len(secret.encode())
        if size_bytes < MIN_SECRET_BYTES:
            found[key_id] = f"has {size_bytes} bytes; {ALGORITHM} wants {MIN_SECRET_BYTES} or more"
        elif "-----BEGIN" in secret:
            found[key_id] = f"is a PEM file; {ALGORITHM} wants a secret that both sides share"
    return found


_decode = msgspec.json.Decoder(Token).decode


def seal(token: Token, key_id: str, secret: str) -> str:
    """Sign; the secret has at least MIN_SECRET_BYTES."""
    return _jws.encode(codec.encode(token), secret, algorithm=ALGORITHM, headers={"kid": key_id})


@lru_cache(maxsize=64)
def _key_id(head: str) -> str | None:
    """The key that a token's first part names.  A signer's tokens all begin alike, so it is not read each time."""
    try:
        named: object = _jws.get_unverified_header(f"{head}.e30.AA").get("kid")
    except jwt.InvalidTokenError:
        raise BadToken("malformed") from None
    return named if isinstance(named, str) else None


def unseal(text: str, keys: Mapping[str, str]) -> Token:
    """Read a token that one of `keys` (secrets by key id) has signed; raises BadToken."""
    secret = keys.get(_key_id(text.partition(".")[0]) or "")
    if secret is None:
        raise BadToken("unknown_key")
    try:
        payload = _jws.decode_complete(text, secret, algorithms=[ALGORITHM])["payload"]
    except jwt.InvalidTokenError:  # another algorithm too
        raise BadToken("signature") from None
    try:
        return _decode(payload)
    except codec.UNREADABLE:
        raise BadToken("malformed") from None
