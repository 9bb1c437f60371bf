"""Names of the Redis keys that more than one process reads."""

from dataclasses import dataclass

from topics.settings import Settings


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one deployment: those of another topic prefix are others, though they lie in the same Redis.

    One hash slot, so that a Lua call may touch all of them.
    """

    prefix: str
    """That of the topics, and behind it that of a shadow; it holds no brace."""

    def all(self) -> str:
        """Pattern of every key, for SCAN."""
        return f"{{{self.prefix}rampmeter}}:*"

    def bucket(self, level: str, name: str) -> str:
        """Token bucket of a budget level: `global`, `pool`, `tenant` or `class`."""
        return f"{{{self.prefix}rampmeter}}:bucket:{level}:{name}"

    def reservation(self, request_id: str) -> str:
        """What admission decided about an id, and the units it holds."""
        return f"{{{self.prefix}rampmeter}}:request:{request_id}"

    def claim(self, request_id: str) -> str:
        """Who runs an id, or where its answer lies."""
        return f"{{{self.prefix}rampmeter}}:claim:{request_id}"

    def memory(self) -> str:
        """Since when claims are remembered, and whether earlier ones were lost."""
        return f"{{{self.prefix}rampmeter}}:claims"

    def promoted(self, request_id: str) -> str:
        """Mark that an id was copied to the aged tier."""
        return f"{{{self.prefix}rampmeter}}:promoted:{request_id}"

    def ledger(self) -> str:
        """Mark that the ledger is whole; Redis lost it when this is missing."""
        return f"{{{self.prefix}rampmeter}}:ledger"

    def rebuild(self) -> str:
        """Lock of the worker that brings a lost ledger back."""
        return f"{{{self.prefix}rampmeter}}:rebuild"

    def expiries(self) -> str:
        """Sorted set of the ids that hold or wait for budget; the score is the server time at which that lapses.

        Whoever runs an id renews its reservation by `ZADD <this> XX GT <now_s + dedupe_window_s> <id>`: with XX, since
        one that is settled must not come back.
        """
        return f"{{{self.prefix}rampmeter}}:expiries"

    def shares(self, pool: str) -> str:
        """What is open and waits in a pool: by lane, lane and tenant (`<lane>/<tenant>`), and tenant (`/<tenant>`)."""
        return f"{{{self.prefix}rampmeter}}:shares:{pool}"


def of(settings: Settings, shadow: str | None = None) -> Keys:
    """The keys of the deployment that these settings describe, or of one of its shadows.

    No topic's prefix holds a slash, so that a shadow's are never those of another deployment.
    """
    prefix = settings.topics.prefix
    return Keys(prefix if shadow is None else f"{prefix}/{shadow}/")
