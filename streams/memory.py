"""What the ledger remembers, and what its scripts are told of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """As it was last seen: all that was decided since `since_s`, by the server's clock."""

    mark: bytes
    """Another one lies there once it was lost and restored."""
    since_s: float


def mark_of(known: Memory | None) -> bytes:
    """The mark without which a script must do nothing; empty: any will do."""
    return b"" if known is None else known.mark
