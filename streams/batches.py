"""Micro-batches out of a Faust stream: one event is waited for, what has already arrived comes with it.

Faust's own `take` acknowledges whole batches and can stop an agent in silence, so this module drains the stream's queue
itself.  Events that finish out of order are acknowledged through `acknowledging.InOrder`.
"""

import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from faust import Stream
from faust.streams import _current_event
from faust.types import EventT


async def micro_batches(stream: Stream, limit: int) -> AsyncIterator[list[EventT]]:
    """Yield lists of 1 to `limit` events in order; none of them is acknowledged."""
    unacknowledged = stream.noack()
    app = stream.app
    async for first in unacknowledged.events():
        batch = [first]
        queue = cast(Any, unacknowledged.channel).queue
        while len(batch) < limit and not queue.empty():
            event = queue.get_nowait()
            message = event.message
            if not app.flow_control.is_active() or message.generation_id != app.consumer_generation_id:
                continue  # fetched before a rebalance: it comes again to whoever owns the partition now
            if not message.tracked:
                message.tracked = True
                app.consumer.track_message(message)
            batch.append(event)
        yield batch


def done(batch: Sequence[EventT]) -> None:
    """Acknowledge a whole batch, in order: all that came of it is with the broker."""
    for event in batch:
        event.ack()


def make_current(event: EventT) -> None:
    """Let the following table writes count as made for `event`: they go to its partition and its window."""
    _current_event.set(weakref.ref(event))


def headers_of(event: EventT) -> Sequence[tuple[str, bytes]]:
    """The headers of its record, whichever way Faust has them."""
    headers = event.message.headers or ()
    return tuple(headers.items() if isinstance(headers, Mapping) else headers)
