"""What a client asks, and the landing record that it becomes.  Pure."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rampmeter.signing import Signer
from topics import catalog, codec, interfaces
from topics.records import Length, Priority
from topics.settings import Settings
from topics.tokens import Token
from topics.trace_context import TraceContext


def new_id() -> str:
    """An id that no one else uses."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Ask:
    """What to send.  `priority` and `length` choose the landing topic: they are claims that admission verifies."""

    messages: list[dict[str, str]] = field(repr=False)
    model: str | None = None
    tenant: str = "default"
    priority: Priority = Priority.MEDIUM
    length: Length = Length.SHORT
    max_tokens: int | None = None
    stream: bool = False
    id: str = field(default_factory=new_id)
    deadline_s: float | None = None
    """Unix seconds after which the answer is of no use."""
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further fields of the OpenAI body."""
    user_tier: str | None = None
    path: str | None = None
    interface: str | None = None
    """By which way it came, if not by a producer of its own; it is only counted."""
    trace: TraceContext | None = None
    """W3C context that the request continues, where OpenTelemetry has no current span."""
    verbatim: bytes | None = field(default=None, repr=False)
    """A whole OpenAI body, one JSON object, that reaches the engine as it is, in place of all fields of one above."""

    def body(self) -> bytes:
        """The record's value: an OpenAI chat body, or an envelope around one that came from outside.

        A field `body` in a bare body would make the rest of it claims about tenant and class.
        """
        if self.verbatim is not None:
            return msgspec.json.encode({"body": msgspec.Raw(self.verbatim)})
        fields = {"model": self.model, "max_tokens": self.max_tokens, "stream": self.stream or None, **self.extra}
        return msgspec.json.encode(
            {"messages": self.messages, **{name: value for name, value in fields.items() if value is not None}}
        )

    def headers(self, reply_topic: str) -> list[tuple[str, str | bytes | None]]:
        """The claims beside the body; the reply topic's name is complete, prefix included."""
        fields = {
            "rampmeter_id": self.id,
            "rampmeter_tenant": self.tenant,
            "rampmeter_reply_topic": reply_topic,
            "rampmeter_deadline_s": None if self.deadline_s is None else str(self.deadline_s),
            "rampmeter_source": self.source,
            "rampmeter_user_tier": self.user_tier,
            "rampmeter_path": self.path,
            interfaces.HEADER: self.interface,
        }
        return [(name, value.encode()) for name, value in fields.items() if value is not None]

    def token(self, value: bytes, reply_topic: str, now_s: float, valid_s: float) -> Token:
        """All that `headers` and the landing topic claim, for a signer."""
        return Token(
            id=self.id,
            tenant=self.tenant,
            priority=self.priority,
            sha256=codec.digest(value),
            iat=round(now_s, 3),
            exp=round(now_s + valid_s, 3),
            user_tier=self.user_tier,
            source=self.source,
            path=self.path,
            reply_topic=reply_topic,
        )


@dataclass(frozen=True, slots=True)
class Letter:
    """A record ready to be sent."""

    topic: str
    key: bytes
    value: bytes = field(repr=False)
    headers: list[tuple[str, str | bytes | None]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Sender:
    """Where one client's answers come to, and what proves who it is."""

    settings: Settings
    reply_topic: str
    """Complete, prefix included."""
    signer: Signer | None = None

    def letter(self, ask: Ask, correlation: bytes, now_s: float) -> Letter:
        """The landing record; only its correlation tells the answer from those to others who use the same id."""
        value = ask.body()
        headers = [*ask.headers(self.reply_topic), (codec.CORRELATION_HEADER, correlation)]
        if self.signer is not None:
            token = ask.token(value, self.reply_topic, now_s, self.signer.valid_s)
            headers.append((codec.TOKEN_HEADER, self.signer.seal(token).encode()))
        tenant = ask.tenant if ask.tenant in self.settings.topics.tenants else None
        topic = catalog.landing(self.settings, ask.priority, ask.length, tenant)
        return Letter(topic, ask.tenant.encode(), value, headers)
