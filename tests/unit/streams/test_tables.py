import types

import pytest

from streams.policy.history import Kind, Sample
from streams.settings import History, Streams
from streams.tables import Lifetimes, Rows, Spend, spend_key
from tests.support.builders import usage
from tests.support.clock import FakeClock
from topics.records import Tokens

KIND = Kind("acme", "llama-3-8b", "t1")
SETTINGS = Streams(spend_window_s=60, spend_kept_s=600, history=History(window_s=300, kept_s=3600, max_kinds=3))


class Event:
    def __init__(self, at_s, partition=0):
        self.message = types.SimpleNamespace(timestamp=at_s, partition=partition)


@pytest.fixture
def clock():
    return FakeClock(wall_s=30_000.0)


@pytest.fixture
def table():
    return {}


@pytest.fixture
def rows(table, clock):
    return Rows(table, SETTINGS, clock)


def kind(number):
    return Kind("acme", "llama-3-8b", f"t{number}")


def learn(rows, clock, number, partition=0):
    rows.learn(Event(clock.wall_s(), partition), kind(number), [Sample(10, None, None)])


def known(table):
    return {key.rpartition("|")[2] for key, _ in table}


def test_spending_adds_up_by_window(rows, table, clock):
    spent = Spend()
    spent.add(usage(tokens=Tokens(prompt=1, output=7)), 2.5)
    for at_s in (29_940.0, 29_999.0, 30_000.0):
        rows.spend(Event(at_s), "k", spent)
    assert table == {
        ("spend|k", (29_940.0, 30_000.0)): {"requests": 2, "units": 5.0, "output_tokens": 14},
        ("spend|k", (30_000.0, 30_060.0)): {"requests": 1, "units": 2.5, "output_tokens": 7},
    }


def test_an_event_from_the_future_counts_as_of_now(rows, table, clock):
    rows.spend(Event(10.0**9), "k", Spend(requests=1))
    assert [window for _, window in table] == [(30_000.0, 30_060.0)]


def test_a_key_names_tenant_model_and_class():
    assert spend_key(usage()) == "acme|llama-3-8b|medium|short"


def test_rows_of_a_kind_count_while_they_are_kept(rows, clock):
    for _ in range(3):
        learn(rows, clock, 1)
        clock.advance(300)
    assert len(rows.of_kind(KIND)) == 3
    clock.advance(3600 - 900)
    assert len(rows.of_kind(KIND)) == 3
    clock.advance(600)
    assert len(rows.of_kind(KIND)) == 1
    clock.advance(3600)
    assert rows.of_kind(KIND) == []


def test_the_kind_that_was_not_seen_for_longest_is_forgotten(rows, table, clock):
    for number in (1, 2, 3, 1, 4):
        learn(rows, clock, number)
    assert known(table) == {"t1", "t3", "t4"}


def test_all_windows_of_a_forgotten_kind_go(rows, table, clock):
    learn(rows, clock, 1)
    clock.advance(1500)
    learn(rows, clock, 1)
    for number in (2, 3, 4):
        learn(rows, clock, number)
    assert known(table) == {"t2", "t3", "t4"}


def test_a_flood_of_kinds_forgets_those_of_its_own_partition_only(rows, table, clock):
    learn(rows, clock, 1, partition=1)
    for number in range(2, 50):
        learn(rows, clock, number)
    assert known(table) == {"t1", "t48", "t49"}


def test_the_only_kind_of_a_partition_is_kept_although_there_are_enough_elsewhere(rows, table, clock):
    for number in (1, 2, 3):
        learn(rows, clock, number)
    learn(rows, clock, 4, partition=1)
    assert "t4" in known(table)


def test_recovered_kinds_are_forgotten_in_their_order_too(table, clock):
    before = Rows(table, SETTINGS, clock)
    for number in (3, 1, 2):
        learn(before, clock, number)
        clock.advance(300)
    after = Rows(table, SETTINGS, clock)
    after.recovered(dict.fromkeys([*table, ("kind|gone|m|t", (0.0, 300.0))], 0))
    learn(after, clock, 4)
    assert known(table) == {"t1", "t2", "t4"}


def test_a_row_expires_by_its_own_window_and_kind_and_once(clock):
    lifetimes = Lifetimes(SETTINGS, clock)
    spent, learned = ("spend|k", (30_000.0, 30_060.0)), ("kind|k", (30_000.0, 30_300.0))
    for key in (spent, learned, spent, spent):
        lifetimes.note(key)
    clock.advance(659)
    assert lifetimes.take_expired() == []
    clock.advance(1)
    assert lifetimes.take_expired() == [spent]
    clock.advance(3239)
    assert lifetimes.take_expired() == []
    clock.advance(1)
    assert lifetimes.take_expired() == [learned]
    assert lifetimes.take_expired() == []


def test_what_is_remembered_of_lifetimes_does_not_grow_with_writes(clock):
    lifetimes = Lifetimes(SETTINGS, clock)
    for _ in range(1000):
        lifetimes.note(("spend|k", (30_000.0, 30_060.0)))
    assert len(lifetimes._due_s) == 1


def test_a_row_that_is_written_after_it_expired_expires_again(clock):
    lifetimes = Lifetimes(SETTINGS, clock)
    key = ("spend|k", (0.0, 60.0))
    for _ in range(2):
        lifetimes.note(key)
        assert lifetimes.take_expired() == [key]
