"""Signing of requests, for sites whose `identity.mode` is signed.  The secret comes from settings or a file only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import PositiveFloat, SecretStr, model_validator

from topics import tokens
from topics.errors import ConfigError
from topics.section import Section
from topics.tokens import Token


class Signing(Section):
    """The key that this sender signs with; without one its requests carry no token."""

    key_id: str | None = None
    secret: SecretStr | None = None
    secret_file: Path | None = None
    """The secret as the only text of a file."""
    valid_s: PositiveFloat = 60.0
    """Too small: a slow broker or a skewed clock makes a token too old.  Too large: a stolen one works for longer."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        sources = sum(source is not None for source in (self.secret, self.secret_file))
        if sources != (0 if self.key_id is None else 1):
            message = "needs all or nothing: key_id, and either secret or secret_file"
            raise ValueError(message)
        return self


@dataclass(frozen=True, slots=True)
class Signer:
    """One sender's key."""

    key_id: str
    secret: str = field(repr=False)
    valid_s: float

    @classmethod
    def of(cls, signing: Signing) -> Self | None:
        """The signer of the settings, if they have a key; raises ConfigError for a secret that cannot be used."""
        if signing.key_id is None:
            return None
        try:
            secret = _secret(signing)
        except (OSError, UnicodeDecodeError):
            raise ConfigError(
                [f"signing.secret_file: {signing.secret_file} cannot be read as text; name one that can"]
            ) from None
        fault = tokens.faults({signing.key_id: secret}).get(signing.key_id)
        if fault is not None:
            raise ConfigError([f"the secret of signing.key_id {signing.key_id} {fault}"])
        return cls(signing.key_id, secret, signing.valid_s)

    def seal(self, token: Token) -> str:
        """The text of the header `rampmeter_token`."""
        return tokens.seal(token, self.key_id, self.secret)


def _secret(signing: Signing) -> str:
    if signing.secret is not None:
        return signing.secret.get_secret_value()
    return signing.secret_file.read_text().strip() if signing.secret_file is not None else ""
