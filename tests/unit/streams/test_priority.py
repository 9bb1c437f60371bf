import pytest

from streams.policy.priority import Caps, capped
from tests.support.builders import request
from topics.records import Priority

HIGH, MEDIUM, LOW = Priority.HIGH, Priority.MEDIUM, Priority.LOW
CAPS = Caps({"acme": MEDIUM}, {"anonymous": LOW, "pro": HIGH}, {"staging": MEDIUM, "background": LOW})
CASES = [
    (HIGH, "other", "standard", "production", HIGH),
    (LOW, "other", "pro", "production", LOW),
    (HIGH, "acme", "pro", "production", MEDIUM),
    (LOW, "acme", "pro", "production", LOW),
    (HIGH, "other", "anonymous", "production", LOW),
    (HIGH, "other", "standard", "staging", MEDIUM),
    (HIGH, "acme", "standard", "background", LOW),
    (MEDIUM, "acme", "anonymous", "staging", LOW),
]


@pytest.mark.parametrize(("claim", "tenant", "tier", "source", "allowed"), CASES)
def test_a_claim_is_held_to_the_lowest_cap_and_never_raised(claim, tenant, tier, source, allowed):
    assert capped(request(priority=claim, tenant=tenant, user_tier=tier, source=source), CAPS) is allowed
