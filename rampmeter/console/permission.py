"""May this caller give orders?  The token of the settings, of which only a digest is kept."""

import hashlib
import hmac
from typing import Self

from rampmeter.console.settings import Console
from topics.errors import ConfigError

MIN_TOKEN_CHARACTERS = 16
_SCHEME = "bearer "


class Permission:
    """Compares in a time that does not depend on what is compared."""

    def __init__(self, token: str | None) -> None:
        self._digest = None if token is None else _digest(token)

    @classmethod
    def of(cls, console: Console) -> Self:
        """Read the token of the settings; raises ConfigError, without it."""
        if console.token is not None and console.token_file is not None:
            raise ConfigError(["console: needs either token or token_file, or neither to be read-only"])
        token = None if console.token is None else console.token.get_secret_value()
        if console.token_file is not None:
            try:
                token = console.token_file.read_text().strip()
            except (OSError, UnicodeDecodeError):
                raise ConfigError([f"console.token_file: {console.token_file} cannot be read as text"]) from None
        if token is not None and len(token) < MIN_TOKEN_CHARACTERS:
            said = f"has {len(token)} characters; {MIN_TOKEN_CHARACTERS} or more are needed"
            raise ConfigError([f"console.token: it {said}"])
        return cls(token)

    @property
    def is_possible(self) -> bool:
        """Whether there is a token at all."""
        return self._digest is not None

    def allows(self, authorization: str | None) -> bool:
        """Whether an `Authorization: Bearer` header holds the token.

        Browsers send that header for no foreign page, as they would a cookie.
        """
        text = authorization or ""
        given = _digest(text[len(_SCHEME) :].strip())
        is_bearer = text[: len(_SCHEME)].lower() == _SCHEME
        return self._digest is not None and is_bearer and hmac.compare_digest(given, self._digest)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()
