"""Whether a record's claims about tenant and class are proven.  Pure; the signature was checked before.

A claim that contradicts the proof is refused, not corrected: its producer is broken or is not who it says.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from streams.policy.priority import RANK
from topics.codec import Claims
from topics.records import Priority
from topics.tokens import Token

_GRANTED = ("user_tier", "source", "path")
"""Beside the priority, what decides the class."""


class Why(StrEnum):
    """What is wrong with an identity; the label of its metric."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    FUTURE = "future"
    BODY = "body"
    ID = "id"
    TENANT = "tenant"
    CLASS = "class"
    REPLY_TOPIC = "reply_topic"


@dataclass(frozen=True, slots=True)
class Doubt:
    """An identity that is not believed; the sentence holds no secret and no text of the body."""

    why: Why
    detail: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where the record lies, and what it holds."""

    tenant: str | None = None
    """Of the landing topic's name; None on a shared one."""
    priority: Priority | None = None
    """Of the landing topic's name; None when the caller does not ask about it."""
    arrived_s: float | None = None
    """By the broker's clock, or by the sender's where the topic takes its word; None is now."""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """For how long a token is good."""

    max_age_s: float
    max_skew_s: float
    """By how much the signer's clock may be ahead."""
    memory_s: float
    """For how long ids are remembered: an older record, or one dated back so far, might be run again."""


UNPROVEN = {
    "malformed": Doubt(Why.MALFORMED, "the token is not a JWT with all the claims that it needs"),
    "unknown_key": Doubt(Why.UNKNOWN_KEY, "the token names a key that is not known here; it may have been retired"),
    "signature": Doubt(Why.SIGNATURE, "the token is not signed with the key that it names, by HS256"),
}
"""By the word of topics.tokens.BadToken."""
MISSING = Doubt(Why.MISSING, "the header rampmeter_token is missing; this site takes signed requests only")


def by_token(claims: Claims, token: Token, arrival: Arrival, now_s: float, window: Window) -> Claims | Doubt:
    """Claims as the token says them; what else the record claims must be the same."""
    refused = _age(token, arrival, now_s, window) or _content(token, arrival) or _contradiction(claims, token)
    if refused is not None:
        return refused
    return replace(
        claims,
        id=token.id,
        tenant=token.tenant,
        tenant_is_key=False,
        priority=token.priority,
        reply_topic=token.reply_topic or claims.reply_topic,
        **{name: getattr(token, name) for name in _GRANTED},
    )


def by_topic(claims: Claims, arrival: Arrival, tenants: Collection[str]) -> Claims | Doubt:
    """Claims with the tenant of the landing topic.  On a shared topic nobody is proven, so nobody may be named.

    The topic proves the class too: a claim may be lower.  Tier, source and path are its writer's own words; they are
    taken, since the class rules can only lower a class by them.
    """
    refused = _above_topic(claims, arrival)
    if refused is not None:
        return refused
    if arrival.tenant is not None:
        return of_landing(claims, arrival)
    if claims.tenant is not None and (not claims.tenant_is_key or claims.tenant in tenants):
        return Doubt(Why.TENANT, "a tenant must use its own landing topics; on this one every request is anonymous")
    return replace(claims, tenant=None)


def of_landing(claims: Claims, arrival: Arrival) -> Claims | Doubt:
    """Claims with the landing topic's tenant if it has one; a record's key is no claim beside it."""
    if arrival.tenant is None:
        return claims
    if not claims.tenant_is_key and claims.tenant not in {None, arrival.tenant}:
        return Doubt(Why.TENANT, "the record names another tenant than its landing topic")
    return replace(claims, tenant=arrival.tenant, tenant_is_key=False)


def unproven(claims: Claims) -> Claims:
    """What is left of claims that nobody vouches for: how to answer, and nothing about whom or what.

    An id is not kept either: to answer it would end the request of whoever really has it.
    """
    return replace(claims, id=None, tenant=None, user_tier=None, source=None, path=None, priority=None)


def _age(token: Token, arrival: Arrival, now_s: float, window: Window) -> Doubt | None:
    """Judged by the time of arrival, so that a record which is read again is judged as it was the first time."""
    at_s = now_s if arrival.arrived_s is None else arrival.arrived_s
    if token.iat > at_s + window.max_skew_s:
        return Doubt(Why.FUTURE, f"the token is from {token.iat - at_s:.0f} s ahead; compare the clocks")
    if token.exp <= at_s:
        return Doubt(Why.EXPIRED, f"the token had expired {at_s - token.exp:.0f} s before the record arrived")
    if at_s - token.iat > window.max_age_s:
        detail = f"the token was {at_s - token.iat:.0f} s old; at most {window.max_age_s:g} s are allowed"
        return Doubt(Why.EXPIRED, detail)
    if now_s - at_s > window.memory_s:
        detail = f"the record is {now_s - at_s:.0f} s old; ids are remembered for {window.memory_s:g} s"
        return Doubt(Why.EXPIRED, detail)
    return None


def _content(token: Token, arrival: Arrival) -> Doubt | None:
    if token.sha256 != arrival.sha256:
        return Doubt(Why.BODY, "the record's value is not the one that was signed")
    if arrival.tenant is not None and arrival.tenant != token.tenant:
        return Doubt(Why.TENANT, "the token is of another tenant than its landing topic")
    if arrival.priority is not None and RANK[arrival.priority] < RANK[token.priority]:
        return Doubt(Why.CLASS, f"the landing topic is of class {arrival.priority}, the token of {token.priority}")
    return None


def _above_topic(claims: Claims, arrival: Arrival) -> Doubt | None:
    """A word that is no class is for the verification to refuse."""
    said, proven = claims.priority, arrival.priority
    if proven is None or said not in set(Priority) or RANK[Priority(said)] >= RANK[proven]:
        return None
    return Doubt(Why.CLASS, f"the landing topic is of class {proven}, the record claims {said}")


def _contradiction(claims: Claims, token: Token) -> Doubt | None:
    """The first claim that the token does not say: even where it is silent, for all that decides tenant or class."""
    if claims.id is not None and claims.id != token.id:
        return Doubt(Why.ID, "the token is for another id")
    if claims.tenant is not None and not claims.tenant_is_key and claims.tenant != token.tenant:
        return Doubt(Why.TENANT, "the token is for another tenant")
    for name in ("priority", *_GRANTED):
        claim = getattr(claims, name)
        if claim is not None and claim != getattr(token, name):
            return Doubt(Why.CLASS, f"the record claims a {name} that its token does not")
    if token.reply_topic is not None and claims.reply_topic not in {None, token.reply_topic}:
        return Doubt(Why.REPLY_TOPIC, "the token is for another reply topic")
    return None
