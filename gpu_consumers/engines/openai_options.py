"""What the engine `openai` needs to know of its server.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_consumers.policy.breaker import Rules


@dataclass(frozen=True, slots=True)
class OpenAiOptions:
    """Which server, and how long to wait for it."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """Up to and including `/v1`."""
    api_key: str | None = field(default=None, repr=False)
    model_names: Mapping[str, str] = field(default_factory=dict)
    """The server's names of our models, where they differ."""
    connect_timeout_s: float = 5.0
    silence_timeout_s: float = 600.0
    """Longest wait for the next piece.  Too small: long prompts fail.  Too large: a hung server holds its jobs."""
    max_line_bytes: int = 4_000_000
    """Largest single chunk."""
    breaker: Rules = field(default_factory=Rules)
    probe_s: float = 1.0
    """Pause before each probe of a server that failed.  Too small: load on a sick server.  Too large: a late return."""
