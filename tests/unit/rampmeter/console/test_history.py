from rampmeter.console.history import STEP_S, Queues, Waits

NOW_S = 1000.0
CLASSES = ("high", "low")


def test_waits_lie_in_the_step_in_which_their_attempt_ended():
    waits = Waits(60.0, CLASSES)
    for ended_s, waited_s in ((NOW_S, 2.0), (NOW_S - 1, 1.0), (NOW_S - 12, 8.0)):
        waits.add("high", waited_s, ended_s, NOW_S)
    points = waits.points(NOW_S)
    assert [point.at_s for point in points] == [985.0, 995.0, 1000.0]
    assert [point.ended for point in points] == [{"high": 1}] * 3
    assert 8.0 <= points[0].waits_s["high"]["p90"] <= 8.0 * 1.09


def test_a_class_of_which_nothing_ended_is_unknown_and_not_zero():
    waits = Waits(60.0, CLASSES)
    waits.add("low", 0.0, NOW_S, NOW_S)
    (point,) = waits.points(NOW_S)
    assert "high" not in point.waits_s
    assert point.waits_s["low"]["p50"] < 0.001


def test_what_is_too_old_or_of_no_class_says_nothing_and_a_clock_ahead_counts_now():
    waits = Waits(60.0, CLASSES)
    waits.add("high", 1.0, NOW_S - 61, NOW_S)
    waits.add("mallory", 1.0, NOW_S, NOW_S)
    assert waits.points(NOW_S) == ()
    waits.add("high", 1.0, NOW_S + 500, NOW_S)
    assert [point.at_s for point in waits.points(NOW_S)] == [NOW_S]


def test_only_steps_that_changed_say_so():
    waits = Waits(60.0, CLASSES)
    waits.add("high", 1.0, NOW_S, NOW_S)
    waits.points(NOW_S)
    waits.add("high", 3.0, NOW_S + 9, NOW_S + 9)
    assert [point.changed_s for point in waits.points(NOW_S + 9)] == [NOW_S, NOW_S + 9]


def test_memory_ends_with_the_span():
    waits, queues = Waits(60.0, CLASSES), Queues(60.0)
    for number in range(1000):
        now_s = NOW_S + number
        waits.add("low", 1.0, now_s, now_s)
        waited, queued = waits.points(now_s), queues.note({"high": number}, now_s)
    assert len(waited) <= 60 / STEP_S + 2
    assert len(queued) <= 60 / STEP_S + 2
    assert queued[-1].queued == {"high": 999}
