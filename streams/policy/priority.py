"""The class of a request: its producer's claim, held to what business rules allow.  Pure.

Each attribute sets a ceiling: the class that its rules give to its word, `medium` for a word that they do not know,
none while it has no rules or the request does not say it.  The class is the lowest of the claim, all ceilings and the
tenant's cap.  So a claim can lower a request and never raise it, an attribute can only lower it too, the order of the
rules does not matter, and a better word in any of them never gives a lower class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from topics.records import Priority

RANK = {Priority.HIGH: 0, Priority.MEDIUM: 1, Priority.LOW: 2}
"""Low numbers come first."""
UNKNOWN = Priority.MEDIUM
ANY = "*"
"""The word of a rule for all words that have none of their own."""

Words = Mapping[str, Priority]


def _none() -> Words:
    return {}


@dataclass(frozen=True, slots=True)
class Rules:
    """Highest class by word of each attribute; `path` by prefix, of which the longest counts."""

    user_tier: Words = field(default_factory=_none)
    source: Words = field(default_factory=_none)
    model_kind: Words = field(default_factory=_none)
    path: Words = field(default_factory=_none)
    tenant_cap: Words = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class Attributes:
    """What the rules look at; None is not said."""

    tenant: str
    user_tier: str | None = None
    source: str | None = None
    model_kind: str | None = None
    path: str | None = None


def decide(claim: Priority, said: Attributes, rules: Rules) -> Priority:
    """The lowest of the claim and of what each attribute allows."""
    ceilings = (
        _of_word(said.user_tier, rules.user_tier),
        _of_word(said.source, rules.source),
        _of_word(said.model_kind, rules.model_kind),
        _of_path(said.path, rules.path),
        rules.tenant_cap.get(said.tenant, rules.tenant_cap.get(ANY)),
    )
    return lowest(claim, *(ceiling for ceiling in ceilings if ceiling is not None))


def lowest(*classes: Priority) -> Priority:
    """Of several classes, the one that waits longest."""
    return max(classes, key=RANK.__getitem__)


def _of_word(word: str | None, words: Words) -> Priority | None:
    if word is None or not words:
        return None
    return words.get(word, words.get(ANY, UNKNOWN))


def _of_path(path: str | None, prefixes: Words) -> Priority | None:
    if path is None or not prefixes:
        return None
    fitting = [prefix for prefix in prefixes if path.startswith(prefix)]
    return prefixes[max(fitting, key=len)] if fitting else prefixes.get(ANY, UNKNOWN)
