"""A landing record sent again for a dead letter: a new id, the same body byte for byte.  Pure."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from rampmeter.signing import Signer
from topics import codec
from topics.records import Request
from topics.tokens import Token

REPLAY_HEADER = "rampmeter_replay_of"
"""Names the dead letter on a record that was sent again."""
_MARK = "~replay-"
_ID_HEADERS = {codec.ID_HEADER, "ce_id"}
_DEADLINE_HEADER = "rampmeter_deadline_s"
_SECRET_WORDS = ("token", "authorization", "signature", "secret", "cookie", "password")
_MAX_ID = 128

Header = tuple[str, bytes | str | None]


@dataclass(frozen=True, slots=True)
class LandingRecord:
    """Value and headers as they are written to a landing topic."""

    value: bytes | None
    headers: tuple[Header, ...]


def replay_id(old_id: str, number: int) -> str:
    """The id under which dead letter `number` is tried again.

    Another one than before, since the old one is remembered as answered; the same for each replay of this letter, so
    that a second replay within the dedupe window is answered by the first and charged nothing.
    """
    mark = f"{_MARK}{number}"
    return old_id.split(_MARK, maxsplit=1)[0][: _MAX_ID - len(mark)] + mark


def renewed(original: LandingRecord, new_id: str, letter: str, *, keeps_deadline: bool) -> LandingRecord:
    """The record to send; `letter` names the dead letter."""
    dropped = {*_ID_HEADERS, REPLAY_HEADER} if keeps_deadline else {*_ID_HEADERS, REPLAY_HEADER, _DEADLINE_HEADER}
    headers = [(name, value) for name, value in original.headers if name not in dropped]
    headers += [(codec.ID_HEADER, new_id.encode()), (REPLAY_HEADER, letter.encode())]
    return LandingRecord(_renewed_value(original.value, new_id, keeps_deadline=keeps_deadline), tuple(headers))


def token_of(original: LandingRecord) -> Token | None:
    """What the record's token says, its signature unchecked; None when there is none to be read."""
    text = next((value for name, value in reversed(original.headers) if name == codec.TOKEN_HEADER), None)
    raw = text.encode() if isinstance(text, str) else text or b""
    try:
        payload = base64.urlsafe_b64decode(raw.split(b".")[1] + b"===")
        return msgspec.json.decode(payload, type=Token)
    except (IndexError, ValueError):
        return None


def signed(landing: LandingRecord, token: Token, new_id: str, signer: Signer, now_s: float) -> LandingRecord:
    """The record under a new token, which vouches for what the old one did and for the new id."""
    fresh = msgspec.structs.replace(
        token,
        id=new_id,
        sha256=codec.digest(landing.value),
        iat=round(now_s, 3),
        exp=round(now_s + signer.valid_s, 3),
    )
    headers = [(name, value) for name, value in landing.headers if name != codec.TOKEN_HEADER]
    return replace(landing, headers=(*headers, (codec.TOKEN_HEADER, signer.seal(fresh).encode())))


def may_sign(token: Token | None, request: Request | None) -> bool:
    """Whether admission believed this token: only then may another key vouch for what it says."""
    return token is not None and request is not None and (token.id, token.tenant) == (request.id, request.tenant)


def deadline_s(original: LandingRecord) -> float | None:
    """The deadline that a record claims, the envelope's before the header's; None when there is none to be read."""
    claims: list[bytes | str | None] = [value for name, value in original.headers if name == _DEADLINE_HEADER]
    if (claimed := (_envelope(original.value) or {}).get("deadline_s")) is not None:
        claims.append(bytes(memoryview(claimed)))
    text = claims[-1] if claims else None
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def is_replay(headers: Iterable[Header]) -> bool:
    """Tell whether a landing record was sent again from a dead letter."""
    return any(name == REPLAY_HEADER for name, _ in headers)


def readable(headers: Iterable[Header]) -> list[tuple[str, str]]:
    """Headers as text, those that may hold a secret hidden."""
    shown = []
    for name, value in headers:
        raw = value.encode() if isinstance(value, str) else value or b""
        is_secret = any(word in name.lower() for word in _SECRET_WORDS)
        shown.append((name, "***" if is_secret else raw.decode(errors="backslashreplace")))
    return shown


def _renewed_value(value: bytes | None, new_id: str, *, keeps_deadline: bool) -> bytes | None:
    """An envelope's own id would win over the header's, so it is replaced there; all else stays as it was written."""
    envelope = _envelope(value)
    if envelope is None:
        return value
    if "id" in envelope:
        envelope["id"] = msgspec.Raw(msgspec.json.encode(new_id))
    if not keeps_deadline:
        envelope.pop("deadline_s", None)
    return msgspec.json.encode(envelope)


def _envelope(value: bytes | None) -> dict[str, msgspec.Raw] | None:
    """The fields of an envelope; None for a bare body and for what cannot be read."""
    try:
        fields = msgspec.json.decode(value or b"", type=dict[str, msgspec.Raw])
    except codec.UNREADABLE:
        return None
    return fields if "body" in fields else None
