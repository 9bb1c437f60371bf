"""The W3C trace context of a request, as text: what senders put beside it and every hop passes on."""

import re
from typing import NamedTuple, Protocol

PARENT_HEADER = "traceparent"
STATE_HEADER = "tracestate"
_PARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_STATE = 512
_MEMBER = r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_STATE = re.compile(rf"{_MEMBER}(?:[ \t]*,[ \t]*{_MEMBER}){{0,31}}")


class TraceContext(NamedTuple):
    """Where in a trace what follows belongs."""

    parent: str
    state: str | None = None

    def headers(self) -> list[tuple[str, bytes]]:
        """As a record carries it."""
        return [(name, text.encode()) for name, text in self.texts().items()]

    def texts(self) -> dict[str, str]:
        """As HTTP carries it."""
        return {PARENT_HEADER: self.parent} | ({} if self.state is None else {STATE_HEADER: self.state})


class Carrier(Protocol):
    """What names a context in two fields."""

    @property
    def traceparent(self) -> str | None:
        """The header of this name."""

    @property
    def tracestate(self) -> str | None:
        """The header of this name."""


def of(carrier: Carrier) -> TraceContext | None:
    """The context that it names; a state says nothing without a parent."""
    return None if carrier.traceparent is None else TraceContext(carrier.traceparent, carrier.tracestate)


def is_valid(header: str, text: str) -> bool:
    """Whether one of the two headers may be believed; W3C has what is not ignored."""
    if header == PARENT_HEADER:
        return _PARENT.fullmatch(text) is not None
    return len(text) <= _MAX_STATE and _STATE.fullmatch(text) is not None
