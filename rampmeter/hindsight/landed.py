"""Reads landing records again as admission did, by what was logged of each: verified, priced, or refused once more."""

from collections.abc import Iterator, Mapping
from typing import Any

from rampmeter.hindsight import redecide
from rampmeter.hindsight.redecide import Books, Difference
from streams import intake
from streams.identity import Identities, Rulebook
from streams.intake import Landed
from streams.policy import cost, evidence
from streams.policy.evidence import Field
from streams.policy.verification import Refusal
from topics import codec
from topics.catalog import Landing
from topics.errors import DecodeError
from topics.outcomes import Reason
from topics.records import Decision, Request

Key = tuple[str, float]
"""A request's id and its arrival; together they name one landing record."""


def keys(landed: Landed) -> list[Key]:
    """Under which a decision about this record may be logged: the id that it claims, and that of its place."""
    found = [codec.fallback_id(landed.origin)]
    try:
        claims = codec.read_headers(landed.headers)
        event = codec.decode_event(landed.value, claims, landed.key, landed.origin, landed.timestamp_s)
    except DecodeError:
        pass
    else:
        if event.claims.id:
            found.append(event.claims.id)
    return [(name, landed.timestamp_s) for name in found]


def key_of(decision: Decision) -> Key | None:
    """That of the record that this entry is about; None when it is about none."""
    arrived_s = decision.inputs.get("arrived_s")
    return (decision.id, float(arrived_s)) if isinstance(arrived_s, int | float) else None


class Readings:
    """Reads records again under one set of settings."""

    def __init__(self, books: Books, reply_partitions: Mapping[str, int]) -> None:
        """`reply_partitions`: counts of the topics that exist; whether one was missing then is in the entry."""
        self._books, self._counts = books, reply_partitions
        self._rulebook, self._identities = Rulebook(books.streams), Identities(books.streams)

    def differences(self, decision: Decision, landed: Landed, spot: Landing) -> list[Difference]:
        """Where the record, read again, says otherwise than the entry."""
        try:
            return list(self._differences(decision, landed, spot))
        except (KeyError, ValueError, TypeError) as error:
            return [Difference("inputs", "incomplete", str(error))]

    def _differences(self, decision: Decision, landed: Landed, spot: Landing) -> Iterator[Difference]:
        again = self._read(decision, landed, spot)
        stage = "admission" if isinstance(again, Request) else "verification"
        if decision.stage != stage:
            yield Difference("stage", decision.stage, stage)
        if isinstance(again, Refusal):
            if decision.reason != again.reason:
                yield Difference("reason", decision.reason, again.reason)
            said: dict[str, Field] = {"detail": again.detail, "tenant": again.tenant, "model": again.model}
            yield from redecide.compared(decision, said)
        elif decision.stage == stage:
            yield from redecide.compared(decision, _told(again))  # the price follows, see `redecide`

    def _read(self, decision: Decision, landed: Landed, spot: Landing) -> Request | Refusal:
        """Its first entry says when it was read; for a later one, of what had passed then, its arrival will do."""
        inputs: Mapping[str, Any] = decision.inputs
        was_missing = decision.reason == Reason.REPLY_TOPIC_MISSING
        rules = self._rulebook.rules({} if was_missing else self._counts)
        now_s, settings = float(inputs.get("seen_s", inputs["arrived_s"])), self._books.streams
        verified, _ = intake.verify(landed, spot, rules, self._identities, now_s)
        if isinstance(verified, Refusal) or "long_units" not in inputs:
            return verified
        model = settings.models[verified.model]
        expected = cost.expect(verified, model, evidence.known_given(inputs), inputs["coefficient"])
        item = intake.priced(verified, expected, settings, inputs["long_units"], now_s)
        return item if isinstance(item, Refusal) else item.request


def _told(request: Request) -> dict[str, Field]:
    """What the entry of an admission tells of a request."""
    return {
        "tenant": request.tenant,
        "model": request.model,
        "template": request.template,
        "priority": request.priority.value,
        "length_claim": request.length_claim.value,
        "prompt_tokens": request.prompt_tokens,
        "max_tokens": request.max_tokens,
        "choices": request.choices,
        "deadline_s": request.deadline_s,
    }
