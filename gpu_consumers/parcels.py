"""Letters that end one entry, and who sees to it that the broker has them: one by one, or all in one transaction."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpu_consumers.assignment import Entry
from gpu_consumers.claims import Claims, ClaimsUnavailable
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.outbox import Ack, Letter, OnAck, Outbox
from gpu_consumers.worklist import Worklist
from topics import delivery


@dataclass(slots=True, eq=False)
class Item:
    """A letter of a parcel."""

    letter: Letter
    on_ack: OnAck
    falls_back: bool = False
    """Whoever sent it has another way for it when it is refused for good; all else is sent until it is taken."""


class Carrier(Protocol):
    """Sends what belongs together."""

    awaits_chunks: bool
    """Whether it has to know when the chunks of an entry are acknowledged."""
    holds_claims: bool
    """Whether it holds claims anew when what it was given could not go at once."""

    @property
    def unsent(self) -> int:
        """Entries that wait for it, beside what the outbox counts."""

    def carry(self, entry: Entry, items: Sequence[Item], on_lost: Callable[[], None] | None) -> None:
        """Each `on_ack` runs later on the loop.  `on_lost` runs instead once the claim of the entry's id is lost."""


class OneByOne:
    """Each letter for itself; the offset follows when all are acknowledged."""

    awaits_chunks = holds_claims = False
    unsent = 0

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def carry(self, entry: Entry, items: Sequence[Item], on_lost: Callable[[], None] | None) -> None:  # noqa: ARG002
        """Hand them to the outbox."""
        for item in items:
            self._outbox.send(item.letter, item.on_ack)


@dataclass(slots=True, eq=False)
class Parcel:
    """All that ends one entry: its letters and its offset, in one transaction or not at all."""

    entry: Entry
    items: list[Item]
    on_lost: Callable[[], None] | None
    """None: it goes whoever holds the claim."""
    goes_alone: bool = False
    """A letter of it failed, and shall not fail those of others again."""
    acks: dict[Item, Ack] = field(default_factory=dict)
    """What came of each letter in the transaction that it is or was in."""

    @property
    def has_its_chunks(self) -> bool:
        """Whether they lie before it."""
        return self.entry.open_chunks == 0

    @property
    def is_alone(self) -> bool:
        """Whether it needs a transaction of its own."""
        return self.goes_alone or any(item.letter.is_alone for item in self.items)


class Returned(NamedTuple):
    """A parcel back from the poll thread."""

    parcel: Parcel
    is_sent: bool
    """In a transaction that is committed."""


class Together:
    """The loop's side of transactions: what it puts into `outgoing` the poll thread sends, and gives back.

    Invariant: a parcel is with one of the two threads, and whoever has it may change it; it ends once, sent or lost.
    It goes only while its claim is sure, and one that could not go while it was comes back here to have it held anew.
    """

    awaits_chunks = True  # they go another way, which may be slower
    holds_claims = True

    def __init__(self, claims: Claims, wake: Callable[[], object]) -> None:
        self._claims = claims
        self.outgoing: Mailbox[Parcel] = Mailbox(lambda: None)
        """Read by the poll thread; bounded by `gpu.unsettled_requests`."""
        self.returned: Mailbox[Returned] = Mailbox(wake)
        self.unsent = 0
        self._at_hand: Parcel | None = None
        self._unsure: Worklist[Parcel] = Worklist()

    def carry(self, entry: Entry, items: Sequence[Item], on_lost: Callable[[], None] | None) -> None:
        """Send them in one transaction; those that replace a refused letter, with the rest of its parcel."""
        if self._at_hand is not None and self._at_hand.entry is entry:
            self._at_hand.items += items
        else:
            self.unsent += 1
            self.outgoing.put(Parcel(entry, [*items], on_lost))

    def is_sure(self, parcel: Parcel) -> bool:
        """Whether nobody else can answer it before what is sent now has arrived or never will; from any thread."""
        return parcel.on_lost is None or self._claims.is_sure(parcel.entry.id)

    def deliver(self) -> None:
        """Tell what came of the parcels that are back."""
        for parcel, is_sent in self.returned.take():
            if is_sent:
                self.unsent -= 1
                for item in parcel.items:
                    item.on_ack(parcel.acks[item])
            elif not self._is_lost(parcel):
                self._again(parcel)

    async def hold(self, retry_s: float) -> None:
        """Hold the claims of what could not go at once, so that it may go after all."""
        while True:
            batch = await self._unsure.take()
            try:
                await self._claims.hold([parcel.entry.id for parcel in batch])
            except ClaimsUnavailable:
                self._unsure.put_back(batch)
                await asyncio.sleep(retry_s)
                continue
            for parcel in batch:
                if not self._is_lost(parcel):
                    self.outgoing.put(parcel)

    def _is_lost(self, parcel: Parcel) -> bool:
        """Whether another one answers it, and then end it."""
        if parcel.on_lost is None or self._claims.holds(parcel.entry.id):
            return False
        self.unsent -= 1
        parcel.on_lost()
        return True

    def _again(self, parcel: Parcel) -> None:
        refused = [
            item
            for item in parcel.items
            if item.falls_back and item in parcel.acks and parcel.acks[item].error in delivery.FINAL
        ]
        parcel.items = [item for item in parcel.items if item not in refused]
        self._at_hand = parcel
        for item in refused:
            item.on_ack(parcel.acks[item])
        self._at_hand = None
        if self.is_sure(parcel):
            self.outgoing.put(parcel)
        else:
            self._unsure.add(parcel)
