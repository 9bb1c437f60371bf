"""Settings of the HTTP door: where it listens, who may enter, and its bounds."""

from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr

from rampmeter.signing import Signing
from topics.records import Priority
from topics.section import Section
from topics.settings import Settings


class Key(Section):
    """An API key and what it stands for: whoever holds it may say nothing else about tenant and class."""

    secret: SecretStr | None = None
    secret_file: Path | None = None
    """The secret as the only text of a file; one of the two."""
    tenant: str = Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")
    priority: Priority = Priority.MEDIUM
    """The highest class; a request may name a lower one in the header `rampmeter-priority`."""
    user_tier: str | None = None
    source: str | None = None


class Door(Section):
    """The HTTP door."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    """0 takes a free one."""
    keys: dict[str, Key] = {}
    """By a name that may be shown."""
    keys_file: Path | None = None
    """More of them: a TOML file with a table for each name.  Keep it readable for this process only."""
    reply_topic: str | None = None
    """Where its answers come to, without the prefix; None: the default one.  One of its own spares it the others'."""
    wait_s: PositiveFloat = 600.0
    """How long a request is waited for.  Too small: long answers end in 504.  Too large: lost clients hold places."""
    max_body_bytes: PositiveInt = 900_000
    """Too small: long prompts are refused.  More than `topics.max_record_bytes` less some headers fits no record."""
    read_s: PositiveFloat = 30.0
    """How long a body may take to arrive.  Too small: slow lines fail.  Too large: idle ones hold memory."""
    max_open_requests: PositiveInt = 1000
    """Requests waited for at a time.  Too small: clients are sent away for nothing.  Too large: memory."""
    tenant_open_requests: PositiveInt = 500
    """The same for one tenant.  Too small: it cannot fill its share.  Too large: it keeps the others out."""
    remembered_answers: PositiveInt = 100_000
    """Places of answers that can be fetched by id.  Too small: an answer is gone before it is fetched."""
    drain_s: PositiveFloat = 30.0
    """How long open requests may go on after SIGTERM.  Too small: answers are cut off.  Too large: stops are slow."""


class DoorSettings(Settings):
    """Everything the door needs."""

    door: Door = Door()
    signing: Signing = Signing()
