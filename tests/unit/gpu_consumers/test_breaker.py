from gpu_consumers.policy.breaker import Breaker, Rules

RULES = Rules(failures=3, longest_wait_s=60.0)


def failed(times, breaker=None):
    breaker = breaker or Breaker()
    for _ in range(times):
        breaker = breaker.failed(RULES)
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_how_many():
    assert failed(2).closed(0.0) is None
    assert failed(3).closed(0.0) == "the server failed 3 times in a row"
    assert failed(2, failed(2).answered()).closed(0.0) is None


def test_only_a_probe_closes_it():
    assert failed(3).answered().is_open
    assert failed(3).recovered() == Breaker()
    assert failed(2, failed(3).recovered()).closed(0.0) is None


def test_a_pause_ends_by_itself_is_bounded_and_never_shortened():
    asked = Breaker().asked_to_wait(30.0, 100.0, RULES)
    assert asked.asked_to_wait(1.0, 100.0, RULES) == asked
    assert (asked.closed(129.0), asked.closed(130.0)) == ("the server asked for a pause", None)
    assert Breaker().asked_to_wait(3600.0, 100.0, RULES).until_s == 160.0


def test_a_probe_that_succeeds_does_not_end_a_pause():
    assert failed(3).asked_to_wait(30.0, 0.0, RULES).recovered().closed(29.0) is not None
