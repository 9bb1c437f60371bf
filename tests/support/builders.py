"""Records with sensible fields; each test names only those it is about."""

import json

import msgspec

from topics.outcomes import Outcome
from topics.records import Length, Origin, Price, Priority, ReplyAddress, Request, Tokens, Usage, Work

WALL_S = 1_700_000_000.0


def body(text="hello there", **fields):
    """An OpenAI chat body as bytes."""
    return json.dumps({"model": "llama-3-8b", "messages": [{"role": "user", "content": text}], **fields}).encode()


def request(**fields):
    """A verified request."""
    defaults = {
        "id": "r1",
        "tenant": "acme",
        "model": "llama-3-8b",
        "priority": Priority.MEDIUM,
        "length_claim": Length.SHORT,
        "reply": ReplyAddress(topic="replies"),
        "origin": Origin(topic="requests.medium.short", partition=0, offset=0),
        "arrived_s": WALL_S,
        "prompt_tokens": 100,
        "body": msgspec.Raw(body()),
    }
    return Request(**{**defaults, **fields})


def price(**fields):
    """A price of 100 units in the default pool."""
    defaults = {"pool": "default", "length": Length.SHORT, "expected_output_tokens": 100, "cost_units": 100.0}
    return Price(**{**defaults, **fields})


def work(request_fields=None, price_fields=None, **fields):
    """Priced work on its way to a lane."""
    return Work(request=request(**(request_fields or {})), price=price(**(price_fields or {})), **fields)


def usage(**fields):
    """A completed attempt of 100 prompt and 50 output tokens."""
    defaults = {
        "id": "r1",
        "tenant": "acme",
        "pool": "default",
        "model": "llama-3-8b",
        "priority": Priority.MEDIUM,
        "length": Length.SHORT,
        "outcome": Outcome.COMPLETED,
        "attempt": 1,
        "reserved_units": 30.0,
        "tokens": Tokens(prompt=100, output=50),
        "finished_s": WALL_S,
        "consumer": "c1",
    }
    return Usage(**{**defaults, **fields})
