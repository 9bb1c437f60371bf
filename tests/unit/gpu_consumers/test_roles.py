import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.policy.roles import Look, Peer, Reason, Rules, State, decide, is_served, serves
from gpu_consumers.policy.selection import LANES
from topics.records import Length, Role

RULES = Rules(after_s=5.0, apart_s=15.0, idle_ratio=0.5, pressed_ratio=0.9)
START_S = 1000.0
OF = {length: tuple(lane for lane in LANES if lane.length is length) for length in Length}


def peer(role=Role.LONG, *, owned=(0, 1), lanes=None, has_waiting=False, known_s=60.0, takes_work=True):
    mine = OF.get(Length(role.value)) if role is not Role.GENERAL else LANES
    return Peer(role, dict.fromkeys(mine if lanes is None else lanes, owned), has_waiting, known_s, takes_work)


class Consumer:
    """A consumer of one length, looked at twice a second."""

    def __init__(self, role=Role.SHORT, *, borrows=False):
        self.role, self.now_s = role, START_S
        self.state = State(START_S, borrows=borrows)
        self.changes = []

    def look(self, for_s, peers, own_ratio=0.0):
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self.now_s += 0.5
            before = self.state.borrows
            self.state = decide(self.role, self.state, Look(peers, own_ratio, 2), RULES, self.now_s)
            if self.state.borrows != before:
                self.changes.append((self.now_s - START_S, self.state.reason))
        return self.state.borrows


def test_roles_are_subscriptions():
    assert serves(Role.GENERAL, borrows=False) == LANES
    assert serves(Role.SHORT, borrows=False) == OF[Length.SHORT]
    assert serves(Role.LONG, borrows=False) == OF[Length.LONG]
    assert serves(Role.SHORT, borrows=True) == serves(Role.LONG, borrows=True) == LANES


@pytest.mark.parametrize("other", [Role.LONG, Role.GENERAL])
def test_a_consumer_keeps_to_its_lanes_while_others_serve_the_rest(other):
    assert not Consumer().look(100, [peer(other)])


@pytest.mark.parametrize(
    "peers",
    [
        [],
        [peer(Role.SHORT)],
        [peer(owned=(0,))],
        [peer(lanes=OF[Length.LONG][:3])],
        [peer(takes_work=False)],
        [peer(owned=(0,)), peer(owned=(1,), takes_work=False)],
    ],
    ids=["alone", "only short", "a partition without owner", "a lane without owner", "ill", "one of two ill"],
)
def test_lanes_that_nobody_serves_are_borrowed_once_that_has_lasted(peers):
    consumer = Consumer()
    assert consumer.look(60, peers, own_ratio=0.8)
    assert consumer.changes == [(5.5, Reason.UNSERVED)]


def test_however_busy_a_consumer_is_it_takes_lanes_that_nobody_serves_and_keeps_them():
    for peers in [], [peer(Role.SHORT)], [peer(owned=(0,)), peer(owned=(1,), takes_work=False)]:
        consumer = Consumer()
        assert consumer.look(100, peers, own_ratio=1.0)
        assert len(consumer.changes) == 1


def test_a_gap_of_a_rebalance_is_no_missing_owner():
    consumer = Consumer()
    for _ in range(10):
        consumer.look(4, [])
        consumer.look(1, [peer()])
    assert consumer.changes == []


def test_what_cannot_be_read_changes_nothing():
    consumer, borrower = Consumer(), Consumer(borrows=True)
    assert not consumer.look(100, None)
    assert borrower.look(100, None, own_ratio=1.0)


def test_one_with_room_helps_when_work_of_the_other_length_waits_and_no_sooner():
    assert not Consumer().look(100, [peer(has_waiting=True)], own_ratio=0.6)
    assert not Consumer().look(100, [peer(has_waiting=False)])
    consumer = Consumer()
    assert consumer.look(100, [peer(has_waiting=True)], own_ratio=0.4)
    assert consumer.changes == [(15.0, Reason.HAS_ROOM)]


def test_a_long_consumer_helps_with_shorts_in_the_same_way():
    consumer = Consumer(Role.LONG)
    assert consumer.look(30, [peer(Role.SHORT, has_waiting=True)], own_ratio=0.2)
    assert not consumer.look(30, [peer(Role.SHORT)], own_ratio=1.0)


def test_borrowed_lanes_go_when_its_own_work_presses_and_stay_in_between():
    consumer = Consumer()
    consumer.look(20, [peer(has_waiting=True)])
    assert consumer.look(60, [peer()], own_ratio=0.8)
    assert not consumer.look(60, [peer()], own_ratio=0.95)
    assert [reason for _, reason in consumer.changes] == [Reason.HAS_ROOM, Reason.PRESSED]


def test_borrowed_lanes_stay_while_nobody_else_would_have_them():
    consumer = Consumer(borrows=True)
    assert consumer.look(100, [], own_ratio=1.0)
    assert consumer.look(100, [peer(Role.SHORT)], own_ratio=1.0)
    newcomer = peer(lanes=(), known_s=1.0)
    assert consumer.look(100, [newcomer], own_ratio=1.0), "it has not joined the group yet"
    assert not consumer.look(8, [peer(owned=(1,))], own_ratio=1.0)


def test_with_more_consumers_than_partitions_one_that_owns_nothing_gets_the_lanes_after_a_while():
    assert not Consumer(borrows=True).look(100, [peer(lanes=(), known_s=20.0)], own_ratio=1.0)


@given(
    loads=st.lists(
        st.tuples(st.floats(0.1, 30), st.floats(0, 1), st.sampled_from([None, 0, 1, 2]), st.booleans()), max_size=60
    )
)
def test_under_any_load_changes_keep_their_distance_unless_a_lane_has_no_owner(loads):
    consumer = Consumer()
    for for_s, own_ratio, owners, has_waiting in loads:
        peers = None if owners is None else [peer(has_waiting=has_waiting)] * owners
        consumer.look(for_s, peers, own_ratio)
    times = [0.0, *(at_s for at_s, _ in consumer.changes)]
    for before_s, (at_s, reason) in zip(times, consumer.changes, strict=False):
        assert at_s - before_s >= (RULES.after_s if reason is Reason.UNSERVED else RULES.apart_s)


@given(owned=st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=4))
def test_lanes_are_served_when_every_partition_has_an_owner(owned):
    peers = [peer(owned=partitions) for partitions in owned]
    assert is_served(Length.LONG, peers, 4) == (set().union(*owned) == {0, 1, 2, 3})
    assert not is_served(Length.SHORT, peers, 4)
