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
class Refused:
    """An identity that is not believed; the sentence holds no secret and no text of the body."""

    why: Why
    detail: str


@dataclass(frozen=True, slots=True)
class Landed:
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
    "malformed": Refused(Why.MALFORMED, "the token is not a JWT with all the claims that it needs"),
    "unknown_key": Refused(Why.UNKNOWN_KEY, "the token names a key that is not known here; it may have been retired"),
    "signature": Refused(Why.SIGNATURE, "the token is not signed with the key that it names, by HS256"),
}
"""By the word of topics.tokens.BadToken."""
MISSING = Refused(Why.MISSING, "the header rampmeter_token is missing; this site takes signed requests only")


def by_token(claims: Claims, token: Token, landed: Landed, now_s: float, window: Window) -> Claims | Refused:
    """Claims as the token says them; what else the record claims must be the same."""
    refused = _age(token, landed, now_s, window) or _content(token, landed) or _contradiction(claims, token)
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


def by_topic(claims: Claims, landed: Landed, tenants: Collection[str]) -> Claims | Refused:
    """Claims with the tenant of the landing topic.  On a shared topic nobody is proven, so nobody may be named."""
    if landed.tenant is not None:
        return of_landing(claims, landed)
    if claims.tenant is not None and (not claims.tenant_is_key or claims.tenant in tenants):
        return Refused(Why.TENANT, "a tenant must use its own landing topics; on this one every request is anonymous")
    return replace(claims, tenant=None)


def of_landing(claims: Claims, landed: Landed) -> Claims | Refused:
    """Claims with the landing topic's tenant if it has one; a record's key is no claim beside it."""
    if landed.tenant is None:
        return claims
    if not claims.tenant_is_key and claims.tenant not in {None, landed.tenant}:
        return Refused(Why.TENANT, "the record names another tenant than its landing topic")
    return replace(claims, tenant=landed.tenant, tenant_is_key=False)


def unproven(claims: Claims) -> Claims:
    """What is left of claims that nobody vouches for: how to answer, and nothing about whom or what.

    An id is not kept either: to answer it would end the request of whoever really has it.
    """
    return replace(claims, id=None, tenant=None, user_tier=None, source=None, path=None, priority=None)


def _age(token: Token, landed: Landed, now_s: float, window: Window) -> Refused | None:
    """Judged by the time of arrival, so that a record which is read again is judged as it was the first time."""
    at_s = now_s if landed.arrived_s is None else landed.arrived_s
    if token.iat > at_s + window.max_skew_s:
        return Refused(Why.FUTURE, f"the token is from {token.iat - at_s:.0f} s ahead; compare the clocks")
    if token.exp <= at_s:
        return Refused(Why.EXPIRED, f"the token had expired {at_s - token.exp:.0f} s before the record arrived")
    if at_s - token.iat > window.max_age_s:
        detail = f"the token was {at_s - token.iat:.0f} s old; at most {window.max_age_s:g} s are allowed"
        return Refused(Why.EXPIRED, detail)
    if now_s - at_s > window.memory_s:
        detail = f"the record is {now_s - at_s:.0f} s old; ids are remembered for {window.memory_s:g} s"
        return Refused(Why.EXPIRED, detail)
    return None


def _content(token: Token, landed: Landed) -> Refused | None:
    if token.sha256 != landed.sha256:
        return Refused(Why.BODY, "the record's value is not the one that was signed")
    if landed.tenant is not None and landed.tenant != token.tenant:
        return Refused(Why.TENANT, "the token is of another tenant than its landing topic")
    if landed.priority is not None and RANK[landed.priority] < RANK[token.priority]:
        return Refused(Why.CLASS, f"the landing topic is of class {landed.priority}, the token of {token.priority}")
    return None


def _contradiction(claims: Claims, token: Token) -> Refused | None:
    """The first claim that the token does not say: even where it is silent, for all that decides tenant or class."""
    if claims.id is not None and claims.id != token.id:
        return Refused(Why.ID, "the token is for another id")
    if claims.tenant is not None and not claims.tenant_is_key and claims.tenant != token.tenant:
        return Refused(Why.TENANT, "the token is for another tenant")
    for name in ("priority", *_GRANTED):
        claim = getattr(claims, name)
        if claim is not None and claim != getattr(token, name):
            return Refused(Why.CLASS, f"the record claims a {name} that its token does not")
    if token.reply_topic is not None and claims.reply_topic not in {None, token.reply_topic}:
        return Refused(Why.REPLY_TOPIC, "the token is for another reply topic")
    return None
