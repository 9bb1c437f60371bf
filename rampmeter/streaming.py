"""A streamed answer put together again: where it began anew, what never came, where to read on.  Pure."""

from dataclasses import dataclass

import msgspec

from topics.records import Chunk, Reply


class Cursor(msgspec.Struct, frozen=True):
    """Where the reader of one answer stands, in a form that outlives its process (`msgspec.json.encode`)."""

    id: str
    correlation: str
    """Tells the answer from those to others who use the same id."""
    topic: str
    """Complete, prefix included."""
    offsets: dict[int, int]
    """By partition, where to read on."""
    pieces: "Pieces"


class Pieces(msgspec.Struct, frozen=True):
    """Which pieces of an answer were taken so far."""

    attempt: int = 0
    consumer: str | None = None
    next_seq: int = 0
    missing: int = 0
    """Numbers that were left out: the broker did not take them."""

    def is_of(self, answer: Chunk | Reply) -> bool:
        """Whether it belongs to the pieces taken so far."""
        return self.next_seq == 0 or (answer.attempt, answer.consumer) == (self.attempt, self.consumer)

    def lacks(self, reply: Reply) -> int:
        """How many pieces of this answer never came; its body has all of the text."""
        made = reply.chunks or 0
        return made - self.next_seq + self.missing if self.is_of(reply) else made


@dataclass(frozen=True, slots=True)
class Taken:
    """The pieces with one more."""

    pieces: Pieces
    begins_again: bool
    """Its consumer or the engine under it failed: what came before is void."""


def take(pieces: Pieces, chunk: Chunk) -> Taken:
    """Add the next piece."""
    begins_again = not pieces.is_of(chunk) or chunk.seq < pieces.next_seq
    before = Pieces() if begins_again else pieces
    missing = before.missing + chunk.seq - before.next_seq
    return Taken(Pieces(chunk.attempt, chunk.consumer, chunk.seq + 1, missing), begins_again)
