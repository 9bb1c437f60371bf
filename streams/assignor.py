"""Faust's assignor of partitions, which tells when it decided without knowing all topics."""

from typing import Any

from faust.assignor.partition_assignor import PartitionAssignor


class Assignor(PartitionAssignor):
    """The leader's decision holds for the whole group until the next rebalance.

    A broker that has just come back may not know its topics yet: Faust leaves those out, and nobody is given them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unknown: frozenset[str] = frozenset()
        """Topics that this worker left out when it decided, as the leader, in the present rebalance."""

    def metadata(self, topics: set[str]) -> Any:
        """What this worker tells the leader; each rebalance begins with it."""
        self.unknown = frozenset()
        return super().metadata(topics)

    def assign(self, cluster: Any, member_metadata: Any) -> Any:
        """What Faust decides."""
        wanted = {topic for member in member_metadata.values() for topic in member.subscription}
        self.unknown = frozenset(topic for topic in wanted if not cluster.partitions_for_topic(topic))
        return super().assign(cluster, member_metadata)
