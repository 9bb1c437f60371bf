"""What Faust's consumer takes from the broker: soon, only what its sender has committed, and hostile header names too.

Faust has no setting for the first two, and without the third one record ends the consumer, again at every start.
"""

import struct
from collections.abc import Iterator
from typing import Any, SupportsIndex

from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
from aiokafka.consumer import fetcher  # type: ignore[import-untyped]
from aiokafka.record.default_records import _DefaultRecordBatchPy  # type: ignore[import-untyped]
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread

_LENGTH_AT, _LENGTH_END, _MAGIC_AT = 8, 12, 16
_HEADERS_SINCE_MAGIC = 2
_FETCH_WAIT_S = 0.05
"""A partition that was emptied while a fetch of the others waits for data waits with it: Faust's 1.5 s are latency."""


class CommittedThread(AIOKafkaConsumerThread):
    """The thread with Faust's consumer in it; the consumer skips aborted transactions."""

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Both are taken up when it starts.
        consumer._isolation_level = "read_committed"  # noqa: SLF001
        consumer._fetch_max_wait_ms = int(_FETCH_WAIT_S * 1000)  # noqa: SLF001
        return consumer


class _Lenient(bytearray):
    """Bytes whose text may be any; what is not UTF-8 is replaced."""

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        part = super().__getitem__(at)
        return _Lenient(part) if isinstance(part, bytearray) else part

    def decode(self, encoding: str = "utf-8", _errors: str = "strict") -> str:
        return super().decode(encoding, "replace")


class _LenientBatch(_DefaultRecordBatchPy):  # type: ignore[misc]
    """A batch read anew in plain Python."""

    def __init__(self, data: bytes | memoryview) -> None:
        super().__init__(data)
        self._maybe_uncompress()
        self._buffer: bytearray = _Lenient(self._buffer)


class _Batch:
    """A batch that is read fast up to a header name that is not UTF-8, and leniently from there on."""

    def __init__(self, fast: Any, data: memoryview) -> None:
        self._fast, self._data = fast, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)

    def __iter__(self) -> Iterator[Any]:
        read = -1
        try:
            for record in self._fast:
                read = record.offset
                yield record
        except UnicodeDecodeError:
            yield from (record for record in _LenientBatch(self._data) if record.offset > read)


class _Records:
    """The batches of one fetched partition."""

    def __init__(self, data: bytes) -> None:
        self._fast, self._data, self._at = MemoryRecords(data), memoryview(data), 0
        self.has_next, self.size_in_bytes = self._fast.has_next, self._fast.size_in_bytes

    def next_batch(self) -> Any:
        batch, start = self._fast.next_batch(), self._at
        (length,) = struct.unpack_from(">i", self._data, start + _LENGTH_AT)
        self._at = start + _LENGTH_END + length
        plain = self._data[start + _MAGIC_AT] < _HEADERS_SINCE_MAGIC or batch.is_control_batch
        return batch if plain else _Batch(batch, self._data[start : self._at])


def accept_any_header() -> None:
    """Let every consumer of this process read records with any header name."""
    fetcher.MemoryRecords = _Records
