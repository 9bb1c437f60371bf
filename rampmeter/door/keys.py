"""Who is it?  API keys to tenants; only digests of the keys are kept."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from rampmeter.door.settings import Door, Key
from topics.errors import ConfigError
from topics.records import Priority

MIN_SECRET_CHARACTERS = 16
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """What a key stands for."""

    key: str
    """Its name, which may be shown."""
    tenant: str
    priority: Priority
    user_tier: str | None = None
    source: str | None = None


class Keys:
    """The callers by the digest of their secret."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._callers = callers

    @classmethod
    def of(cls, door: Door) -> Self:
        """Read all keys of the settings; raises ConfigError with every fault and no secret."""
        problems: list[str] = []
        callers: dict[bytes, Caller] = {}
        for name, key in {**_of_file(door.keys_file), **door.keys}.items():
            try:
                secret = _secret(key)
            except (OSError, UnicodeDecodeError):
                problems.append(f"door.keys.{name}.secret_file: {key.secret_file} cannot be read as text")
                continue
            if (fault := _fault(key, secret, callers)) is not None:
                problems.append(f"door.keys.{name}: {fault}")
            callers[_digest(secret)] = Caller(name, key.tenant, key.priority, key.user_tier, key.source)
        if not problems and not callers:
            problems.append(_NONE)
        if problems:
            raise ConfigError(problems)
        return cls(callers)

    def caller(self, authorization: str | None) -> Caller | None:
        """Whose key an `Authorization: Bearer` header holds; None when it is nobody's."""
        text = authorization or ""
        if text[: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self._callers.get(_digest(text[len(_SCHEME) :].strip()))


_NONE = (
    "door.keys: nobody may enter; name a key, as in "
    """RAMPMETER_DOOR__KEYS='{"web": {"secret_file": "/run/secrets/web", "tenant": "my-team"}}', or a keys_file"""
)


def _of_file(path: Path | None) -> dict[str, Key]:
    if path is None:
        return {}
    try:
        return {name: Key.model_validate(fields) for name, fields in tomllib.loads(path.read_text()).items()}
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False)]
        raise ConfigError([f"door.keys_file {path}: {fault}" for fault in faults]) from None
    except (OSError, ValueError):  # a parser's words could hold a secret
        raise ConfigError([f"door.keys_file: {path} cannot be read as TOML"]) from None


def _secret(key: Key) -> str:
    if key.secret is not None:
        return key.secret.get_secret_value()
    return key.secret_file.read_text().strip() if key.secret_file is not None else ""


def _fault(key: Key, secret: str, known: Mapping[bytes, Caller]) -> str | None:
    if (key.secret is None) == (key.secret_file is None):
        return "needs either secret or secret_file"
    if len(secret) < MIN_SECRET_CHARACTERS:
        return f"its secret has {len(secret)} characters; {MIN_SECRET_CHARACTERS} or more are needed"
    if (other := known.get(_digest(secret))) is not None:
        return f"its secret is that of {other.key} too"
    return None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
