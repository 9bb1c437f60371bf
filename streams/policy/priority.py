"""The class that business attributes allow; a producer's priority is a claim.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from topics.records import Priority, Request

_RANK = {Priority.HIGH: 0, Priority.MEDIUM: 1, Priority.LOW: 2}


@dataclass(frozen=True, slots=True)
class Caps:
    """The highest class by tenant, user tier and source; what is not named is not capped."""

    by_tenant: Mapping[str, Priority]
    by_user_tier: Mapping[str, Priority]
    by_source: Mapping[str, Priority]


def capped(request: Request, caps: Caps) -> Priority:
    """The claimed priority, or the lowest of the caps that apply when that is lower."""
    limits = (
        caps.by_tenant.get(request.tenant),
        caps.by_user_tier.get(request.user_tier),
        caps.by_source.get(request.source),
    )
    return max((request.priority, *(limit for limit in limits if limit is not None)), key=_RANK.__getitem__)
