from rampmeter.fleet import Fleet
from topics.telemetry import Telemetry


def note(fleet, consumer, at_s, state="ready", pool="default"):
    fleet.note(Telemetry(consumer=consumer, pool=pool, state=state, at_s=at_s))


def test_counts_only_ready_consumers_of_its_pool_with_fresh_news():
    fleet = Fleet("default")
    note(fleet, "a", 100.0)
    note(fleet, "b", 100.0, state="draining")
    note(fleet, "c", 100.0, pool="cpu")
    note(fleet, "d", 90.0)
    assert fleet.size(101.0) == 1


def test_a_silent_consumer_makes_no_new_low_until_it_is_heard_again_or_says_that_it_goes():
    fleet = Fleet("default")
    note(fleet, "a", 100.0)
    note(fleet, "b", 100.0)
    assert fleet.sample(100.0) == 2
    note(fleet, "a", 104.0)
    assert fleet.sample(104.0) == 1
    assert (fleet.low, fleet.high) == (2, 2)
    note(fleet, "b", 104.0, state="gone")
    fleet.sample(104.0)
    assert (fleet.low, fleet.high) == (1, 2)


def test_extremes_start_with_the_first_consumer_seen():
    fleet = Fleet("default")
    fleet.sample(100.0)
    assert (fleet.low, fleet.high) == (None, None)
    note(fleet, "a", 100.0)
    fleet.sample(100.0)
    note(fleet, "b", 101.0)
    fleet.sample(101.0)
    assert (fleet.low, fleet.high) == (1, 2)
    assert not fleet.is_shrunk(101.0)
    note(fleet, "b", 102.0, state="gone")
    assert fleet.is_shrunk(102.0)
