"""What the assignor of partitions says of a decision."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from streams import app
from streams.settings import StreamsSettings

WANTED = {"a", "b"}


def cluster(*known):
    return SimpleNamespace(
        topics=lambda: set(known),
        partitions_for_topic=lambda topic: {0, 1} if topic in known else None,
    )


@pytest.fixture
def assignor(tmp_path: Path):
    return app.build(StreamsSettings(), tmp_path).assignor


def test_a_decision_tells_which_topics_it_left_out_until_the_next_rebalance(assignor):
    me = {"me": assignor.metadata(WANTED)}
    decided = assignor.assign(cluster("a"), me)
    assert {topic for topic, _ in decided["me"].assignment} == {"a"}
    assert assignor.unknown == {"b"}
    assignor.metadata(WANTED)
    assert assignor.unknown == frozenset()
    assignor.assign(cluster("a", "b"), me)
    assert assignor.unknown == frozenset()
