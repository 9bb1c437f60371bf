"""Whether a server is asked: not after failures in a row until a probe succeeds, nor before it wants to.  Pure."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rules:
    """When a server is left alone."""

    failures: int = 5
    """In a row.  Too small: a passing fault stops all.  Too large: as many jobs fail at a server that is gone."""
    longest_wait_s: float = 120.0
    """How long it may ask to be left alone.  Too small: it is pressed.  Too large: a slip of its stops the consumer."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is known of a server; seconds are those of a monotonic clock."""

    failures: int = 0
    """In a row."""
    is_open: bool = False
    """Nothing but probes goes to it."""
    until_s: float = 0.0
    """It asked to be left alone for so long."""

    def failed(self, rules: Rules) -> "Breaker":
        """After one failure more."""
        failures = self.failures + 1
        return replace(self, failures=failures, is_open=self.is_open or failures >= rules.failures)

    def answered(self) -> "Breaker":
        """After an answer.  One to what was sent before it opened does not close it: only a probe does."""
        return self if self.is_open else replace(self, failures=0)

    def recovered(self) -> "Breaker":
        """After a probe that succeeded."""
        return Breaker(until_s=self.until_s)

    def asked_to_wait(self, wait_s: float, now_s: float, rules: Rules) -> "Breaker":
        """After it said how long it wants to be left alone."""
        return replace(self, until_s=max(self.until_s, now_s + min(wait_s, rules.longest_wait_s)))

    def closed(self, now_s: float) -> str | None:
        """Why nothing is sent now; None when all is."""
        if self.is_open:
            return f"the server failed {self.failures} times in a row"
        return "the server asked for a pause" if now_s < self.until_s else None
