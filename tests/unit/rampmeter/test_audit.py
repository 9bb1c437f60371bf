from rampmeter import audit
from rampmeter.audit import Ledger
from topics.outcomes import Outcome
from topics.records import Origin, Reply

NOW_S = 1000.0


def place(offset):
    return ("requests.medium.short", 0, offset)


def reply(offset, outcome=Outcome.COMPLETED, **fields):
    topic, partition, _ = place(offset)
    return Reply(
        id=f"r{offset}", outcome=outcome, origin=Origin(topic=topic, partition=partition, offset=offset), **fields
    )


def ledger(sent, replies=(), dead=()):
    made = Ledger(sent_s={place(offset): at_s for offset, at_s in sent.items()}, dead={place(d) for d in dead})
    for one in replies:
        made.answer(one)
    return made


def report(made):
    return audit.report(made, NOW_S, pending_s=60.0)


def test_each_request_with_one_answer_is_clean():
    found = report(ledger({0: 1.0, 1: 1.0}, [reply(0), reply(1, Outcome.EXPIRED)]))
    assert found.is_clean()
    assert (found.sent, found.answered, found.outcomes) == (2, 2, {"completed": 1, "expired": 1})


def test_old_request_without_answer_is_lost_and_named():
    found = report(ledger({0: 1.0, 1: 1.0}, [reply(0)]))
    assert not found.is_clean()
    assert (found.lost, found.lost_records) == (1, ["requests.medium.short[0]@1"])


def test_young_request_without_answer_is_pending():
    found = report(ledger({0: NOW_S - 10}))
    assert found.is_clean()
    assert found.pending == 1


def test_two_answers_to_one_record_are_a_duplicate():
    found = report(ledger({0: 1.0}, [reply(0), reply(0)]))
    assert not found.is_clean()
    assert (found.duplicates, found.doubled_records) == (1, ["requests.medium.short[0]@0"])


def test_copy_of_the_first_answer_answers_a_repeated_id():
    found = report(ledger({0: 1.0, 1: 1.0}, [reply(0), reply(1, repeat=True)]))
    assert found.is_clean()
    assert (found.answered, found.repeats, found.outcomes) == (2, 1, {"completed": 1})


def test_undecodable_record_in_the_dead_letters_is_accounted_for():
    found = report(ledger({0: 1.0}, dead=[0]))
    assert found.is_clean()
    assert found.dead_lettered == 1


def test_answers_to_records_before_the_window_are_not_counted():
    found = report(ledger({5: 1.0}, [reply(5), reply(1), reply(1)]))
    assert found.is_clean()
    assert found.answered == 1


def test_a_replayed_dead_letter_is_a_request_of_its_own_and_no_duplicate():
    made = ledger({0: 1.0, 1: 2.0}, [reply(0, Outcome.FAILED), reply(1)], dead=[0])
    made.replayed.add(place(1))
    found = report(made)
    assert found.is_clean()
    assert (found.sent, found.answered, found.replays, found.duplicates) == (2, 2, 1, 0)


def test_a_replay_without_an_answer_is_lost_like_any_request():
    made = ledger({0: 1.0, 1: 2.0}, [reply(0)])
    made.replayed.add(place(1))
    assert report(made).lost == 1


def test_every_outcome_is_counted_under_its_own_name():
    found = report(ledger(dict.fromkeys(range(len(Outcome)), 1.0), [reply(n, o) for n, o in enumerate(Outcome)]))
    assert found.is_clean()
    assert found.outcomes == {outcome.value: 1 for outcome in Outcome}
