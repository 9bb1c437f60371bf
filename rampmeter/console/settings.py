"""Settings of the web console: where it listens, who may give orders, and its bounds."""

from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr

from streams.settings import StreamsSettings
from topics.section import Section


class Console(Section):
    """The web console."""

    host: str = "127.0.0.1"
    """Whoever reaches it sees everything but text, unencrypted: beyond this machine put a proxy with a login before."""
    port: int = Field(8081, ge=0, le=65535)
    """0 takes a free one."""
    hosts: tuple[str, ...] = ()
    """Names by which browsers may ask for it beside `localhost` and `host`; others could be those of a foreign page."""
    token: SecretStr | None = None
    """Lets whoever knows it cancel, pause, resume and drain.  Without one the console is read-only."""
    token_file: Path | None = None
    """The token as the only text of a file; at most one of the two."""
    period_s: PositiveFloat = 1.0
    """From one reading to the next.  Too small: load on the broker.  Too large: the page is late."""
    read_timeout_s: PositiveFloat = 3.0
    """Of a reading.  Too small: a slow moment looks like an outage.  Too large: an outage is said as much later."""
    history_s: float = Field(900.0, ge=60, le=6 * 3600)
    """How far back charts and sums begin.  Too small: the start of an incident is cut off.  Too large: memory, and a
    console that starts reads as much of the log."""
    max_clients: PositiveInt = 50
    """Open pages.  Too small: colleagues are sent away.  Too large: each costs a connection and some KB a second."""
    stall_s: PositiveFloat = 10.0
    """How long a page may take nothing.  Too small: slow lines are cut off.  Too large: dead ones hold a place."""
    tenants: PositiveInt = 20
    """Shown by name; the others are one line.  Too small: a loud one is missed.  Too large: a long page."""
    consumers: PositiveInt = 100
    """The same, those in trouble first."""
    decisions: PositiveInt = 30
    """Of the autoscaler, the newest.  Too small: the start of a flap is gone.  Too large: a long page."""
    search_back_s: PositiveFloat = 6 * 3600.0
    """How far back a request is searched.  Too small: older ones are unknown.  Too large: a search reads as much."""


class ConsoleSettings(StreamsSettings):
    """Everything the console needs; budgets are those of the workers, so their settings belong here too."""

    console: Console = Console()
