"""Dead letters on a real log: listed, shown without their text, sent again."""

import json

import msgspec
import pytest
from confluent_kafka import TopicPartition

from rampmeter import audit, dlq, reading
from rampmeter.dead_letters import Filter, Manner
from rampmeter.dlq import Replay
from rampmeter.output import Output
from rampmeter.reading import Missing
from rampmeter.resubmission import REPLAY_HEADER
from rampmeter.signing import Signer
from streams.identity import Identities
from streams.settings import StreamsSettings
from tests.support.builders import body, work
from tests.support.command import one_line_of_json, run
from topics import clients, codec, tokens
from topics.clock import SystemClock
from topics.outcomes import Outcome, Reason
from topics.records import DeadLetter, Origin, Priority, Reply
from topics.settings import load
from topics.tokens import Token

SENTINEL = "xyzzy-prompt"
LANDING = "requests.medium.short"
CLOCK = SystemClock()


@pytest.fixture
def put(settings):
    """Write one record; where it lies."""
    producer = clients.producer(settings)

    def put(topic, value, key=b"acme", headers=(), partition=0):
        at = []
        producer.produce(
            settings.topic(topic), value, key, headers=list(headers), partition=partition,
            on_delivery=lambda error, message: at.append((error, message.partition(), message.offset())),
        )  # fmt: skip
        producer.flush()
        ((error, partition, offset),) = at
        assert error is None
        return Origin(topic=settings.topic(topic), partition=partition, offset=offset)

    return put


@pytest.fixture
def bury(put):
    """Write a record and the dead letter that refers to it; the letter's number."""

    def bury(to, value, reason, headers=(), request_id=None, **fields):
        origin = put(to, value, headers=headers, partition=1)
        letter = DeadLetter(**{
            "topic": origin.topic, "partition": origin.partition, "offset": origin.offset, "reason": reason,
            "detail": "for a test", "sha256": codec.digest(value), "size_bytes": len(value or b""),
            "at_s": CLOCK.wall_s(), "by": "tests", "id": request_id, **fields,
        })  # fmt: skip
        return put("dead_letters", codec.encode(letter)).offset

    return bury


@pytest.fixture
def exhausted(put, bury):
    """A request whose attempts on a lane were all in vain."""

    def exhausted(request_id="r1", value=None, headers=(), **request):
        landed = body(SENTINEL) if value is None else value
        origin = put(LANDING, landed, headers=headers)
        fields = {"id": request_id, "origin": origin, "body": msgspec.Raw(body(SENTINEL)), **request}
        record = codec.encode(work(fields, attempt=3))
        return bury("lanes.default.medium.short", record, Reason.ATTEMPTS_EXHAUSTED, request_id=request_id)

    return exhausted


@pytest.fixture
def replay(settings, capsys):
    """Status and what was said, as JSON."""

    def replay(*numbers, dry=False, keeps_deadline=True, signer=None):
        asked = Replay(numbers, Manner(keeps_deadline, signer), dry)
        status = dlq.replay_letters(settings, asked, CLOCK, Output(CLOCK, as_json=True))
        return status, json.loads(capsys.readouterr().out)

    return replay


def landed(settings):
    """All that lies on the landing topic, as admission would read it."""
    return [
        codec.decode_event(
            m.value(), codec.read_headers(m.headers() or ()), m.key(),
            Origin(topic=m.topic(), partition=m.partition(), offset=m.offset()), m.timestamp()[1] / 1000,
        )
        for m in reading.since(settings, [settings.topic(LANDING)], 0.0)
    ]  # fmt: skip


def replayed(settings):
    found = reading.since(settings, [settings.topic(LANDING)], 0.0)
    return [m for m in found if REPLAY_HEADER in dict(m.headers() or ())]


def test_exhausted_work_is_a_new_request_with_the_body_it_came_with(settings, exhausted, replay):
    number = exhausted(headers=[("rampmeter_id", b"r1"), ("kafka_correlationId", b"\x00\xfe"), ("x-mine", b"1")])
    status, found = replay(number)
    assert status == 0
    assert found["refused"] == []
    assert found["replayed"] == [
        {
            "number": number,
            "old_id": "r1",
            "id": f"r1~replay-{number}",
            "topic": settings.topic(LANDING),
            "partition": 0,
        }
    ]
    (again,) = replayed(settings)
    assert (again.value(), again.key(), again.partition()) == (body(SENTINEL), b"acme", 0)
    claims = codec.read_headers(again.headers())
    assert (claims.id, claims.correlation) == (f"r1~replay-{number}", b"\x00\xfe")
    named = f"{settings.topic('dead_letters')}[0]@{number}".encode()
    assert {("x-mine", b"1"), (REPLAY_HEADER, named)} <= set(again.headers())


def test_the_id_in_an_envelope_does_not_undo_the_new_one(settings, exhausted, replay):
    envelope = b'{"id":"r1","tenant":"acme","body":' + body(SENTINEL) + b"}"
    number = exhausted(value=envelope)
    assert replay(number)[0] == 0
    before, after = landed(settings)
    assert (before.claims.id, after.claims.id) == ("r1", f"r1~replay-{number}")
    assert (after.claims.tenant, bytes(memoryview(after.body))) == ("acme", body(SENTINEL))


def test_a_landing_record_that_nobody_could_read_is_sent_again_as_it_was(settings, bury, replay):
    number = bury(LANDING, b"\xff\x00", Reason.UNDECODABLE, request_id="u1")
    status, found = replay(number)
    assert (status, found["replayed"][0]["id"]) == (0, f"u1~replay-{number}")
    (again,) = replayed(settings)
    assert (again.value(), again.partition()) == (b"\xff\x00", 1)


def test_two_replays_of_one_letter_have_one_id_so_the_second_is_answered_by_the_first(settings, exhausted, replay):
    number = exhausted()
    assert replay(number)[1]["replayed"] == replay(number)[1]["replayed"]
    assert len({dict(m.headers())["rampmeter_id"] for m in replayed(settings)}) == 1


def test_a_dry_run_says_what_would_be_and_sends_nothing(settings, exhausted, replay):
    status, found = replay(exhausted(), dry=True)
    assert (status, found["dry_run"], len(found["replayed"])) == (0, True, 1)
    assert replayed(settings) == []


def test_what_cannot_be_sent_again_is_told_and_the_others_are_sent(settings, bury, exhausted, replay):
    good = exhausted()
    letters = {
        bury("usage", b"\xff", Reason.UNDECODABLE): "only requests are replayed",
        bury("lanes.default.medium.short", b"{}", Reason.WRONG_SHAPE): "only requests are replayed",
        bury(LANDING, body(), Reason.UNDECODABLE, sha256="0" * 64): "holds another record now",
        bury(LANDING, body(), Reason.UNDECODABLE, offset=10**6): "lies behind the end",
        bury(LANDING, body(), Reason.UNDECODABLE, topic=settings.topic("gone")): "no such partition",
        bury(LANDING, body(), Reason.REPLY_TOPIC_MISSING, offset=-1, topic="replies.x"): "was refused by replies.x",
        10**6: "lies behind the end",
    }
    status, found = replay(*letters, good)
    assert status == 1
    assert [one["number"] for one in found["replayed"]] == [good]
    whys = {one["number"]: one["why"] for one in found["refused"]}
    assert whys.keys() == letters.keys()
    for number, word in letters.items():
        assert word in whys[number]


def test_a_lane_record_whose_landing_record_was_replaced_is_refused(settings, exhausted, replay):
    number = exhausted(value=body("another prompt"))
    status, found = replay(number)
    assert status == 1
    assert "does not have the request's body" in found["refused"][0]["why"]


def expire(settings, topic):
    """Delete all records of a topic's partitions, as retention does."""
    admin = clients.admin(settings)
    spots = [TopicPartition(settings.topic(topic), partition, -1) for partition in (0, 1)]
    for future in admin.delete_records(spots).values():
        future.result()


def test_what_has_expired_is_refused_with_the_place_where_the_log_begins_now(settings, exhausted, bury, replay):
    lane, landing = exhausted(), bury(LANDING, body(), Reason.WRONG_SHAPE)
    expire(settings, LANDING)
    status, found = replay(lane, landing)
    assert status == 1
    for one in found["refused"]:
        assert "has expired: the log begins at 1 now" in one["why"]
    assert landed(settings) == []


def test_a_passed_deadline_is_refused_unless_it_is_dropped(settings, exhausted, replay):
    number = exhausted(headers=[("rampmeter_deadline_s", b"1000")])
    status, found = replay(number)
    assert status == 1
    assert "its deadline passed" in found["refused"][0]["why"]
    assert replay(number, keeps_deadline=False)[0] == 0
    assert [event.claims.deadline_s for event in landed(settings)] == [1000.0, None]


SECRET = "s" * 32


def seal(request_id="r1", **fields):
    token = Token(**{
        "id": request_id, "tenant": "acme", "priority": Priority.HIGH, "sha256": codec.digest(body(SENTINEL)),
        "iat": 1.0, "exp": 2.0, "user_tier": "vip", **fields,
    })  # fmt: skip
    return (codec.TOKEN_HEADER, tokens.seal(token, "gateway", SECRET).encode())


def test_a_signed_request_gets_a_token_for_its_new_id_that_admission_believes(exhausted, replay, settings):
    number = exhausted(headers=[("rampmeter_id", b"r1"), seal()])
    signer = Signer("operator", "o" * 32, 60.0)
    assert replay(number, signer=signer)[0] == 0
    (again,) = replayed(settings)
    site = StreamsSettings(identity={"mode": "signed", "keys": {"operator": signer.secret}})
    claims = codec.read_headers(again.headers())
    proven = Identities(site).check(claims, again.value(), None, CLOCK.wall_s())
    assert (proven.id, proven.tenant, proven.priority, proven.user_tier) == (
        f"r1~replay-{number}", "acme", Priority.HIGH, "vip",
    )  # fmt: skip


def test_nobody_vouches_for_what_admission_never_believed(exhausted, bury, replay, settings):
    signer = Signer("operator", "o" * 32, 60.0)
    letters = [
        bury(LANDING, b"\xff", Reason.UNDECODABLE, [seal()]),
        exhausted(headers=[seal(tenant="rich")]),
        exhausted(headers=[(codec.TOKEN_HEADER, b"a.b.c")]),
    ]
    status, found = replay(*letters, signer=signer)
    assert status == 1
    assert {one["why"] for one in found["refused"]} == {
        "it is signed, and admission never believed its token, so nobody else may vouch for it"
    }
    assert "signing.key_id" in replay(exhausted(headers=[seal()]))[1]["refused"][0]["why"]
    assert replayed(settings) == []


def test_letters_are_filtered_and_the_newest_are_shown(settings, put, bury, capsys):
    old = bury(LANDING, b"1", Reason.UNDECODABLE, at_s=CLOCK.wall_s() - 3600)
    empty = bury(LANDING, b"2", Reason.EMPTY_VALUE)
    lane = bury("lanes.default.low.long", b"3", Reason.UNDECODABLE)
    put("dead_letters", b"foreign")

    def numbers(limit=50, **fields):
        now_s = CLOCK.wall_s() + 1
        wanted = Filter(**{"since_s": now_s - 7200, "until_s": now_s, **fields})
        dlq.list_letters(settings, wanted, limit, CLOCK, Output(CLOCK, as_json=True))
        found = json.loads(capsys.readouterr().out)
        return [one["number"] for one in found["dead_letters"]], found["not_shown"]

    assert numbers() == ([old, empty, lane], 0)
    assert numbers(limit=2) == ([empty, lane], 1)
    assert numbers(reasons=(Reason.UNDECODABLE,)) == ([old, lane], 0)
    assert numbers(topics=("lanes.",)) == ([lane], 0)
    assert numbers(until_s=CLOCK.wall_s() - 1800) == ([old], 0)
    assert numbers(since_s=CLOCK.wall_s() - 1800) == ([empty, lane], 0)


def shown(settings, number, capsys, *, with_body=False, as_json=True):
    dlq.show_letter(settings, number, CLOCK, Output(CLOCK, as_json=as_json), with_body=with_body)
    said = capsys.readouterr()
    return said.out + said.err


def test_a_letter_is_shown_with_its_request_and_never_with_text_unless_asked(settings, exhausted, bury, capsys):
    lane = exhausted()
    headers = [("rampmeter_tenant", b"acme"), ("rampmeter_token", b"s3cret")]
    landing = bury(LANDING, body(SENTINEL), Reason.WRONG_SHAPE, headers)
    for as_json in (True, False):
        for number in (lane, landing):
            assert SENTINEL not in shown(settings, number, capsys, as_json=as_json)
            assert SENTINEL in shown(settings, number, capsys, as_json=as_json, with_body=True)
    found = json.loads(shown(settings, lane, capsys))
    assert (found["request"]["attempt"], found["request"]["tenant"], found["letter"]["id"]) == (3, "acme", "r1")
    assert found["request"]["origin"] == f"{settings.topic(LANDING)}[0]@0"
    text = shown(settings, landing, capsys, as_json=False)
    assert "rampmeter_tenant: acme" in text
    assert "s3cret" not in text
    assert codec.digest(body(SENTINEL)) in text


def test_a_letter_whose_record_is_gone_is_shown_all_the_same(settings, bury, capsys):
    number = bury(LANDING, b"\xff", Reason.UNDECODABLE)
    assert json.loads(shown(settings, number, capsys, with_body=True))["body_b64"] == "/w=="
    expire(settings, LANDING)
    found = json.loads(shown(settings, number, capsys, with_body=True))
    assert "has expired" in found["missing"]
    assert found["letter"]["reason"] == "undecodable"


def test_a_letter_that_is_not_there_is_a_failure_with_its_place(settings):
    with pytest.raises(Missing, match=r"dead_letters\[0\]@5"):
        dlq.show_letter(settings, 5, CLOCK, Output(CLOCK), with_body=False)


def test_many_letters_are_replayed_in_chunks(settings, exhausted, replay):
    numbers = [exhausted(f"r{n}") for n in range(5)]
    before, dlq.CHUNK = dlq.CHUNK, 2
    try:
        assert [one["number"] for one in replay(*numbers)[1]["replayed"]] == numbers
    finally:
        dlq.CHUNK = before
    assert len(replayed(settings)) == 5


def test_the_audit_counts_a_replay_as_a_request_of_its_own(settings, put, exhausted, replay):
    number = exhausted()
    replay(number)
    for event, outcome in zip(landed(settings), (Outcome.FAILED, Outcome.COMPLETED), strict=True):
        reply = Reply(id=event.claims.id or "r1", outcome=outcome, origin=event.origin)
        put("replies", codec.encode(reply), reply.id.encode())
    found = audit.report(audit.read(load(StreamsSettings), CLOCK.wall_s() - 600), CLOCK.wall_s(), 60.0)
    assert found.is_clean()
    assert (found.sent, found.answered, found.replays, found.duplicates) == (2, 2, 1, 0)
    assert found.outcomes == {"completed": 1, "failed": 1}


def test_the_commands_list_show_and_replay(settings, stack_env, exhausted, bury, tmp_path):
    number, lost = exhausted(), bury("usage", b"\xff", Reason.UNDECODABLE)

    def rampmeter(*args, status=0):
        done = run(*args, cwd=tmp_path, env=stack_env)
        assert done.returncode == status, done.stdout + done.stderr
        assert SENTINEL not in done.stdout + done.stderr
        return done

    listed = one_line_of_json(rampmeter("dlq", "ls", "--reason", "attempts_exhausted", "--json"))
    assert [one["number"] for one in listed["dead_letters"]] == [number]
    rampmeter("dlq", "show", "999", status=1)
    found = one_line_of_json(rampmeter("dlq", "replay", "--all", "--json", status=1))
    assert [one["number"] for one in found["replayed"]] == [number]
    assert [one["number"] for one in found["refused"]] == [lost]
    assert len(replayed(settings)) == 1
