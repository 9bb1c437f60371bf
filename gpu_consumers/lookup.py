"""Looks for answers that the last owners of taken-over ids may have given."""

import asyncio
from collections.abc import Collection

from gpu_consumers.assignment import Entry
from topics import answers, catalog
from topics.records import Reply
from topics.settings import Settings


async def find(settings: Settings, entries: Collection[Entry]) -> dict[str, Reply]:
    """Their terminal replies by id, from the topics where they can lie.  Raises KafkaException."""
    found: dict[str, Reply] = {}
    default = settings.topic(catalog.default_reply_name(settings))
    since_s = min(entry.since_s for entry in entries)
    for topic in {default, *(entry.work.request.reply.topic for entry in entries)}:
        ids = [entry.id for entry in entries if topic in {default, entry.work.request.reply.topic}]
        found |= await asyncio.to_thread(answers.find, settings, ids, topic, since_s)
    return found
