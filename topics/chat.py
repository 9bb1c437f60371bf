"""What admission reads of an OpenAI chat body: its size, its limits and what kind of request it is."""

import hashlib
from collections.abc import Iterator

import msgspec

_SYSTEM_ROLES = frozenset({"system", "developer"})
_MEDIA = frozenset(
    {
        "image", "image_url", "input_image", "image_pil", "image_embeds", "audio", "audio_url", "input_audio",
        "video", "video_url", "file", "input_file",
    }
)  # fmt: skip
_TEMPLATE_BYTES = 6
_NOTHING = (b"", b"null", b"[]", b"{}")
_FRAME = frozenset({"role", "type"})
"""Of a message: words of a fixed list."""

_decode_parts = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_word = msgspec.json.Decoder(str).decode


def _absent() -> msgspec.Raw:
    return msgspec.Raw()


class Chat(msgspec.Struct):
    """What admission needs of an OpenAI chat body; every other field passes by unread."""

    messages: list[dict[str, msgspec.Raw]]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    tools: msgspec.Raw = msgspec.field(default_factory=_absent)
    functions: msgspec.Raw = msgspec.field(default_factory=_absent)
    tool_choice: msgspec.Raw = msgspec.field(default_factory=_absent)
    function_call: msgspec.Raw = msgspec.field(default_factory=_absent)
    response_format: msgspec.Raw = msgspec.field(default_factory=_absent)
    documents: msgspec.Raw = msgspec.field(default_factory=_absent)
    chat_template: msgspec.Raw = msgspec.field(default_factory=_absent)
    chat_template_kwargs: msgspec.Raw = msgspec.field(default_factory=_absent)
    prefix: msgspec.Raw = msgspec.field(default_factory=_absent)

    def text_bytes(self) -> int:
        """Bytes of all text that the model may read, as JSON: the base of the token estimate.

        A chat template can put any field of a message into the prompt, so all of them count, whatever their names.
        """
        beside = (
            self.tools, self.functions, self.tool_choice, self.function_call, self.response_format, self.documents,
            self.chat_template, self.chat_template_kwargs, self.prefix,
        )  # fmt: skip
        return sum(map(_message_bytes, self.messages)) + sum(map(_size, beside))

    def media_parts(self) -> int:
        """Images and other parts that are not text, whether linked or inside the body."""
        contents = (message.get("content") for message in self.messages)
        return sum(_is_media(part) for content in contents if content is not None for part in _parts(content))

    def output_limit(self) -> int | None:
        """`max_completion_tokens`, or the older `max_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def choices(self) -> int:
        """Answers that the engine generates, of which it may return fewer."""
        return max(self.n or 1, self.best_of or 1)

    def template(self) -> str:
        """Digest of what all requests of one kind share: instructions, tools and functions; "" without any."""
        shared = [bytes(message.get("content", b"")) for message in self.messages if _role(message) in _SYSTEM_ROLES]
        shared += [raw for raw in (bytes(self.tools), bytes(self.functions)) if raw not in _NOTHING]
        if not shared:
            return ""
        return hashlib.blake2b(b"\0".join(shared), digest_size=_TEMPLATE_BYTES).hexdigest()


def _size(raw: msgspec.Raw) -> int:
    """Bytes of a JSON value; 0 for one that is absent, null or empty."""
    size_bytes = len(memoryview(raw))
    return 0 if size_bytes <= len(b"null") and bytes(raw) in _NOTHING else size_bytes


def _role(message: dict[str, msgspec.Raw]) -> str:
    try:
        return _decode_word(message["role"])
    except (KeyError, msgspec.MsgspecError):
        return ""


def _message_bytes(message: dict[str, msgspec.Raw]) -> int:
    return sum(
        _text_bytes(value) if name == "content" else _size(value)
        for name, value in message.items()
        if name not in _FRAME
    )


def _starts(raw: msgspec.Raw, sign: bytes) -> bool:
    return memoryview(raw)[:1].tobytes() == sign


def _text_bytes(content: msgspec.Raw) -> int:
    """Bytes of text in a message's content: a string, or a list of parts."""
    if _starts(content, b'"'):
        return len(memoryview(content)) - 2
    parts = list(_parts(content))
    return sum(_part_bytes(part) for part in parts) if parts else _size(content)


def _parts(content: msgspec.Raw) -> Iterator[dict[str, msgspec.Raw]]:
    """The parts of a content that is a list of them; of any other shape none, so that it counts as text."""
    if not _starts(content, b"["):
        return
    try:
        parts = _decode_parts(content)
    except msgspec.MsgspecError:
        return
    yield from parts


def _part_bytes(part: dict[str, msgspec.Raw]) -> int:
    text = part.get("text")
    text_bytes = 0 if text is None else max(0, len(memoryview(text)) - 2)
    if _is_media(part):
        return text_bytes
    return text_bytes + sum(_size(value) for name, value in part.items() if name not in {"type", "text"})


def _is_media(part: dict[str, msgspec.Raw]) -> bool:
    """By the part's type; vLLM also takes `{"image_url": "..."}` without one."""
    kind = part.get("type")
    if kind is None:
        return not _MEDIA.isdisjoint(part)
    try:
        return _decode_word(kind) in _MEDIA
    except msgspec.MsgspecError:
        return False
