"""Who gets how many of too few GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.policy.quota import Ask, share

CHAT, BATCH = Ask("chat", 6, 1, 1, priority=10), Ask("batch", 6, 1, 1, priority=0)


@pytest.mark.parametrize(("gpus", "chat", "batch"), [(20, 6, 6), (9, 6, 3), (5, 4, 1), (2, 1, 1), (1, 1, 1)])
def test_the_higher_priority_goes_first_and_nobody_loses_the_minimum(gpus, chat, batch):
    assert share([BATCH, CHAT], gpus) == {"chat": chat, "batch": batch}


def test_a_replica_of_many_gpus_leaves_what_it_cannot_use_to_others():
    large = Ask("large", 3, 0, 4, priority=10)
    assert share([large, BATCH], 11) == {"large": 2, "batch": 3}


ASKS = st.lists(
    st.builds(
        Ask, pool=st.uuids().map(str), wanted=st.integers(0, 9), min_replicas=st.integers(0, 2),
        gpus_per_replica=st.sampled_from([1, 2, 8]), priority=st.integers(0, 2),
    ),
    max_size=5,
)  # fmt: skip


@given(ASKS, st.integers(0, 60))
def test_nobody_gets_more_than_wanted_and_only_minimums_exceed_the_quota(asks, gpus):
    given = share(asks, gpus)
    assert all(given[ask.pool] <= ask.wanted for ask in asks)
    least = sum(min(ask.wanted, ask.min_replicas) * ask.gpus_per_replica for ask in asks)
    assert sum(given[ask.pool] * ask.gpus_per_replica for ask in asks) <= max(gpus, least)
