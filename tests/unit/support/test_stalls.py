from tests.support.stalls import Stalls


def stalls(*samples):
    made = Stalls()
    for now_s, (committed, end) in enumerate(samples):
        made.note("t[0]", committed, end, float(now_s))
    return made.longest_s


def test_an_offset_that_stands_while_there_is_lag_is_a_stall():
    assert stalls((5, 9), (5, 10), (5, 12), (12, 12)) == 2.0


def test_an_offset_that_moves_or_has_nothing_before_it_is_none():
    assert stalls((5, 9), (6, 10), (7, 12)) == 0.0
    assert stalls((5, 5), (5, 5), (5, 9), (9, 9)) == 0.0


def test_a_stall_begins_anew_when_the_lag_was_gone_in_between():
    assert stalls((5, 9), (5, 9), (9, 9), (9, 11), (9, 11)) == 1.0


def test_a_group_that_never_committed_stands_too():
    assert stalls((-1001, 3), (-1001, 4), (-1001, 4), (4, 4)) == 2.0


def test_a_stall_that_is_excused_begins_anew():
    made = Stalls()
    for now_s in range(4):
        made.note("t[0]", 1, 2, float(now_s))
    made.forget()
    for now_s in range(10, 12):
        made.note("t[0]", 1, 2, float(now_s))
    assert made.longest_s == 3.0


def test_only_the_time_in_which_the_group_is_stable_counts():
    made = Stalls()
    for now_s in range(9):
        made.note("t[0]", 1, 2, float(now_s), is_stable=now_s < 3 or now_s > 6)
    assert (made.longest_s, made.longest_in_all_s) == (4.0, 8.0)


def test_without_a_sample_nothing_is_known():
    assert Stalls().longest_s is None


def test_the_longest_of_all_partitions_counts_and_is_named():
    made = Stalls()
    for now_s in range(4):
        made.note("a[0]", 1, 2, float(now_s))
        made.note("b[0]", now_s, 9, float(now_s))
    assert (made.longest_s, made.where) == (3.0, "a[0]")
