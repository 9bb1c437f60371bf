"""Finished offsets beyond the commit offset, as text for the commit's metadata.  Pure.

Two forms of the same set, whichever is shorter: runs (varint pairs of gap and length) and bits.
"""

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator

MAX_BYTES = 4095
"""The broker's default for `offset.metadata.max.bytes`, less the byte that the client puts behind the text."""
_AIM_RATIO = 15 / 16
"""Of the limit, when runs are left out.  Too small: more is left out than must be.  Too large: many tries."""
_RUNS = "rm1r:"
_BITS = "rm1b:"
_MAX_DECODED_BYTES = 1 << 20
_VARINT_MORE = 0x80
_VARINT_BITS = 7

Runs = list[tuple[int, int]]
"""Inclusive ranges (first, last), ascending and apart."""


class ForeignMetadata(ValueError):
    """The text was not written by this module, or is damaged."""


def encode(base: int, runs: Runs) -> str:
    """Write `runs`, all of them above `base`, the commit offset, however long; an empty set is the empty text."""
    if not runs:
        return ""
    as_runs = _RUNS + _pack(_varints(base, runs))
    span = runs[-1][1] - base
    if span // 8 > _MAX_DECODED_BYTES:
        return as_runs
    as_bits = _BITS + _pack(_bits(base, runs).to_bytes(span // 8 + 1, "little"))
    return min(as_runs, as_bits, key=len)


def encode_most(base: int, runs: Runs, limit_bytes: int) -> str:
    """Write as many of `runs` as fit: the longest of them, and of equal ones the lowest."""
    text = encode(base, runs)
    longest = sorted(runs, key=lambda run: run[0] - run[1]) if len(text) > limit_bytes else runs
    count = len(runs)
    while len(text) > limit_bytes:
        count = int(count * limit_bytes / len(text) * _AIM_RATIO)
        text = encode(base, sorted(longest[:count]))
    return text


def decode(base: int, text: str | None) -> Runs:
    """Read what `encode` wrote.  Raises ForeignMetadata."""
    if not text:
        return []
    packed = text[len(_RUNS) :]
    if text.startswith(_RUNS):
        return list(_read_runs(base, _unpack(packed)))
    if text.startswith(_BITS):
        return list(_read_bits(base, _unpack(packed)))
    raise ForeignMetadata("unknown prefix")


def runs_of(offsets: Iterable[int]) -> Runs:
    """Merge ascending offsets into runs."""
    runs: Runs = []
    for offset in offsets:
        if runs and offset == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs


def _pack(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 6)).decode()


def _unpack(packed: str) -> bytes:
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b85decode(packed), _MAX_DECODED_BYTES + 16)
    except (ValueError, zlib.error, binascii.Error) as error:
        raise ForeignMetadata("damaged text") from error
    if not inflate.eof:
        raise ForeignMetadata("damaged or oversized text")
    return data


def _bits(base: int, runs: Runs) -> int:
    """One bit an offset, the base's lowest.  By way of text, since each shift of a long number would copy it."""
    parts: list[str] = []
    at = base
    for first, last in runs:
        parts += "0" * (first - at), "1" * (last - first + 1)
        at = last + 1
    return int("".join(parts)[::-1], 2)


def _varints(base: int, runs: Runs) -> bytes:
    out = bytearray()
    at = base
    for first, last in runs:
        for number in (first - at, last - first):
            rest = number
            while rest >= _VARINT_MORE:
                out.append(rest & (_VARINT_MORE - 1) | _VARINT_MORE)
                rest >>= _VARINT_BITS
            out.append(rest)
        at = last
    return bytes(out)


def _read_varints(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & (_VARINT_MORE - 1)) << shift
        shift += _VARINT_BITS
        if byte < _VARINT_MORE:
            yield number
            number = shift = 0
    if shift:
        raise ForeignMetadata("it ends in the middle of a number")


def _read_runs(base: int, data: bytes) -> Iterator[tuple[int, int]]:
    numbers = list(_read_varints(data))
    if len(numbers) % 2:
        raise ForeignMetadata("a run has no length")
    at = base
    for gap, extra in zip(numbers[::2], numbers[1::2], strict=True):
        first, last = at + gap, at + gap + extra
        if gap < 1:
            raise ForeignMetadata("runs overlap")
        yield first, last
        at = last


def _read_bits(base: int, data: bytes) -> Iterator[tuple[int, int]]:
    bits = bin(int.from_bytes(data, "little"))[:1:-1]
    at = bits.find("1")
    while at >= 0:
        end = bits.find("0", at)
        end = len(bits) if end < 0 else end
        yield base + at, base + end - 1
        at = bits.find("1", end)
