"""What topics got since the last look, up to their ends as they are at each: all of it, or an error."""

from collections.abc import Iterator

from confluent_kafka import Message, TopicPartition

from rampmeter import positions
from topics import clients, tail
from topics.settings import Settings


class Feed:
    """One topic of ours from a while before the first look on.  For one thread; commits nothing."""

    def __init__(self, settings: Settings, name: str, silence_s: float) -> None:
        self._topic, self._silence_s = settings.topic(name), silence_s
        self._reader = clients.reader(settings)
        self._offsets: dict[int, int] = {}

    def since(self, since_s: float) -> Iterator[Message]:
        """What came since the last look; the first begins with what was written then.

        Raises KafkaException or ConfigError; what was not read comes with the next look.
        """
        if not self._offsets:
            starts = positions.ends(self._reader, [self._topic])
            starts += positions.since(self._reader, [self._topic], since_s)
            self._offsets = {place.partition: place.offset for place in starts}
        places = [TopicPartition(self._topic, *place) for place in self._offsets.items()]
        for message in tail.until_ends(self._reader, places, self._silence_s):
            self._offsets[message.partition() or 0] = (message.offset() or 0) + 1
            yield message

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()
