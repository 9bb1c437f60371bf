"""Letters that end one entry, and who sees to it that the broker has them: one by one, or all in one transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpu_consumers.assignment import Entry
from gpu_consumers.claims import Claims
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.outbox import Ack, Letter, OnAck, Outbox
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

    def carry(self, entry: Entry, items: Sequence[Item], on_lost: Callable[[], None] | None) -> None:
        """Each `on_ack` runs later on the loop.  `on_lost` runs instead once the claim of the entry's id is lost."""


class OneByOne:
    """Each letter for itself; the offset follows when all are acknowledged."""

    awaits_chunks = False

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

    Invariant: a parcel is with one of the two threads, and whoever has it may change it.
    """

    awaits_chunks = True  # they go another way, which may be slower

    def __init__(self, claims: Claims, wake: Callable[[], object]) -> None:
        self._claims = claims
        self.outgoing: Mailbox[Parcel] = Mailbox(lambda: None)
        """Read by the poll thread; bounded by `gpu.unsettled_requests`."""
        self.returned: Mailbox[Returned] = Mailbox(wake)
        self._at_hand: Parcel | None = None

    def carry(self, entry: Entry, items: Sequence[Item], on_lost: Callable[[], None] | None) -> None:
        """Send them in one transaction; those that replace a refused letter, with the rest of its parcel."""
        if self._at_hand is not None and self._at_hand.entry is entry:
            self._at_hand.items += items
        else:
            self.outgoing.put(Parcel(entry, [*items], on_lost))

    def may_go(self, parcel: Parcel) -> bool:
        """Whether nobody else can answer it, and its chunks lie before it; from any thread."""
        is_ours = parcel.on_lost is None or self._claims.is_sure(parcel.entry.id)
        return is_ours and parcel.entry.open_chunks == 0

    def is_lost(self, parcel: Parcel) -> bool:
        """Whether another one answers it; from any thread."""
        return parcel.on_lost is not None and not self._claims.holds(parcel.entry.id)

    def deliver(self) -> None:
        """Tell what came of the parcels that are back."""
        for parcel, is_sent in self.returned.take():
            if is_sent:
                for item in parcel.items:
                    item.on_ack(parcel.acks[item])
            elif self.is_lost(parcel) and parcel.on_lost is not None:
                parcel.on_lost()
            else:
                self._again(parcel)

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
        self.outgoing.put(parcel)
