"""How evenly tenants were served.  Pure."""

from collections.abc import Collection


def jain(shares: Collection[float]) -> float | None:
    """Jain's index of what each got over what it is entitled to: 1 is even, 1/n is all for one; None for nobody."""
    squares = sum(share * share for share in shares)
    if squares == 0:
        return None
    return sum(shares) ** 2 / (len(shares) * squares)
