import json

import jwt
import pytest

from rampmeter.client import Ask
from streams import metrics
from streams.identity import Identities, Rulebook
from streams.policy import verification
from streams.policy.identity import Why
from streams.policy.verification import Fault
from streams.settings import StreamsSettings
from tests.support.builders import body
from topics import codec, tokens
from topics.outcomes import Outcome, Reason
from topics.records import Length, Origin, Priority, Request
from topics.tokens import Token

NOW_S = 1_000_000.0
OLD, NEW = "old-secret-of-thirty-two-bytes-SECRET", "new-secret-of-thirty-two-bytes-SECRET"
BODY = body("SENTINEL")
SIGNED = {"mode": "signed", "keys": {"old": OLD, "new": NEW}, "max_token_age_s": 300, "max_skew_s": 30}
ORIGIN = Origin(topic="requests.high.short", partition=1, offset=7)


def identities(tenants=(), **identity):
    return Identities(StreamsSettings(identity=identity, topics={"tenants": tenants}))


def token(key_id="new", secret=NEW, value=BODY, **fields):
    full = {
        "id": "r1", "tenant": "acme", "priority": Priority.MEDIUM, "sha256": codec.digest(value),
        "iat": NOW_S - 10, "exp": NOW_S + 50, **fields,
    }  # fmt: skip
    return tokens.seal(Token(**full), key_id, secret)


def claims(sealed=None, value=BODY, key=b"acme", **said):
    """Claims of a record whose headers say these."""
    headers = [(f"rampmeter_{name}", word.encode()) for name, word in said.items()]
    headers += [] if sealed is None else [(codec.TOKEN_HEADER, sealed.encode())]
    return codec.decode_event(value, codec.read_headers(headers), key, ORIGIN, NOW_S).claims


def check(made, value=BODY, tenant=None, now_s=NOW_S, priority=Priority.MEDIUM, **identity):
    return identities(**{**SIGNED, **identity}).check(made, value, tenant, now_s, priority)


@pytest.mark.parametrize(("key_id", "secret"), [("old", OLD), ("new", NEW)])
def test_a_signed_request_is_believed_whichever_key_is_in_use(key_id, secret):
    sealed = token(key_id, secret, user_tier="vip", source="production", path="/v1", reply_topic="replies.a")
    proven = check(claims(sealed, key=b"other"))
    assert (proven.id, proven.tenant, proven.priority) == ("r1", "acme", "medium")
    assert (proven.user_tier, proven.source, proven.path) == ("vip", "production", "/v1")
    assert proven.reply_topic == "replies.a"


def test_the_same_words_beside_the_token_are_no_contradiction():
    sealed = token(user_tier="vip")
    same = {"id": "r1", "tenant": "acme", "priority": "medium", "user_tier": "vip", "reply_topic": "replies"}
    assert check(claims(sealed, **same)).reply_topic == "replies"


def test_an_envelope_is_covered_as_a_whole():
    value = json.dumps({"id": "r1", "priority": "medium", "deadline_s": NOW_S + 5, "body": json.loads(BODY)}).encode()
    assert check(claims(token(value=value), value), value).deadline_s == NOW_S + 5
    changed = value.replace(b'"deadline_s"', b'"deadlines"')
    assert check(claims(token(value=value), changed), changed).reason is Reason.BAD_IDENTITY


NONE = jwt.encode({"id": "r1", "tenant": "acme"}, "", algorithm="none", headers={"kid": "new"})
ATTACKS = {
    "no token": (claims(), {}, Why.MISSING),
    "an empty token": (claims(""), {}, Why.MISSING),
    "words for a token": (claims("SECRET words"), {}, Why.MALFORMED),
    "algorithm none": (claims(NONE), {}, Why.SIGNATURE),
    "an unknown key": (claims(token("lost", "l" * 40)), {}, Why.UNKNOWN_KEY),
    "a key under another's name": (claims(token("new", OLD)), {}, Why.SIGNATURE),
    "another tenant": (claims(token(), tenant="evil"), {}, Why.TENANT),
    "another tenant in the envelope": (
        claims(token(value=b'{"tenant":"evil","body":' + BODY + b"}"), b'{"tenant":"evil","body":' + BODY + b"}"),
        {"value": b'{"tenant":"evil","body":' + BODY + b"}"}, Why.TENANT,
    ),
    "another tenant's topic": (claims(token()), {"tenant": "evil"}, Why.TENANT),
    "another class in a header": (claims(token(), priority="high"), {}, Why.CLASS),
    "another class by the topic": (claims(token()), {"priority": Priority.HIGH}, Why.CLASS),
    "a tier that was not granted": (claims(token(), user_tier="vip"), {}, Why.CLASS),
    "another tier than granted": (claims(token(user_tier="standard"), user_tier="vip"), {}, Why.CLASS),
    "a source that was not granted": (claims(token(), source="production"), {}, Why.CLASS),
    "a path that was not granted": (claims(token(), path="/v1/chat"), {}, Why.CLASS),
    "a changed body": (claims(token()), {"value": BODY + b" "}, Why.BODY),
    "an expired token": (claims(token(exp=NOW_S)), {}, Why.EXPIRED),
    "a token that is good for ever": (claims(token(iat=NOW_S - 301, exp=NOW_S + 1e9)), {}, Why.EXPIRED),
    "a token from the future": (claims(token(iat=NOW_S + 31, exp=NOW_S + 90)), {}, Why.FUTURE),
    "a token of another request": (claims(token(), id="r2"), {}, Why.ID),
    "another reply topic than signed": (
        claims(token(reply_topic="replies.a"), reply_topic="replies.b"), {}, Why.REPLY_TOPIC,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "how", "why"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_refused_and_counted_and_its_answer_tells_no_secret(made, how, why):
    counter = metrics.IDENTITY_REFUSED.labels(why)
    before = counter._value.get()
    fault = check(made, **how)
    assert (fault.reason, fault.outcome) == (Reason.BAD_IDENTITY, Outcome.REJECTED_INVALID)
    assert counter._value.get() == before + 1
    assert not any(word in repr(fault) for word in ("SENTINEL", "SECRET", OLD, NEW, made.token or OLD))


def test_every_reason_but_none_is_shown_by_an_attack():
    assert {why for *_, why in ATTACKS.values()} == set(Why)


def test_a_clock_that_is_a_little_ahead_and_a_token_at_its_limit_are_taken():
    assert check(claims(token(iat=NOW_S + 30, exp=NOW_S + 90))).id == "r1"
    assert check(claims(token(iat=NOW_S - 300, exp=NOW_S + 1))).id == "r1"


def test_a_record_that_is_read_again_later_is_judged_as_the_first_time():
    made = claims(token(exp=NOW_S + 5))
    of = identities(**SIGNED)
    for later_s in (0, 400, 600):
        assert of.check(made, BODY, None, NOW_S + later_s, arrived_s=NOW_S).id == "r1"
        assert of.believed(made, BODY, None, NOW_S + later_s, arrived_s=NOW_S).id == "r1"


def test_a_stolen_token_cannot_be_sent_dated_back_beyond_the_memory_of_ids():
    fault = identities(**SIGNED).check(claims(token()), BODY, None, NOW_S + 601, arrived_s=NOW_S)
    assert (fault.reason, fault.detail) == (
        Reason.BAD_IDENTITY,
        "the record is 601 s old; ids are remembered for 600 s",
    )


def test_a_token_may_be_sent_on_a_lower_topic_and_keeps_its_class():
    assert check(claims(token()), priority=Priority.LOW).priority == "medium"


def test_of_duplicate_headers_the_last_counts_and_still_must_be_signed():
    evil, good = [("rampmeter_tenant", b"evil")], [("rampmeter_tenant", b"acme")]
    sealed = [(codec.TOKEN_HEADER, token().encode())]

    def of(headers):
        return check(codec.decode_event(BODY, codec.read_headers(headers), None, ORIGIN, NOW_S).claims)

    assert of([*evil, *good, *sealed]).tenant == "acme"
    assert isinstance(of([*good, *evil, *sealed]), Fault)
    assert isinstance(of([*sealed, (codec.TOKEN_HEADER, b"x")]), Fault)
    assert isinstance(of([*sealed, ("ce_tenant", b"evil")]), Fault)


def test_a_flood_of_headers_does_not_reach_the_token_behind_it():
    flood = [("x", b"")] * codec.MAX_HEADERS
    made = codec.read_headers([*flood, (codec.TOKEN_HEADER, token().encode())])
    assert made.problem is not None
    assert isinstance(check(made), Fault)


def test_a_token_without_an_id_does_not_get_a_fresh_one_for_each_replay():
    proven = check(claims(token(id="")))
    rules = Rulebook(StreamsSettings()).rules({"replies": 4})
    event = codec.decode_event(BODY, proven, None, ORIGIN, NOW_S)
    assert verification.verify(event, Priority.MEDIUM, Length.SHORT, rules, NOW_S).reason is Reason.BAD_HEADER


TOPIC = {"mode": "topic", "tenants": ["acme", "big"]}
BY_TOPIC = {
    "its own topic": ("acme", {}, b"acme", "acme"),
    "its own topic, no key": ("acme", {}, None, "acme"),
    "a key that is no tenant": ("acme", {}, b"conversation-7", "acme"),
    "the same name again": ("acme", {"tenant": "acme"}, None, "acme"),
    "another name": ("acme", {"tenant": "big"}, None, Why.TENANT),
    "a shared topic": (None, {}, None, None),
    "a shared topic, a key that is no tenant": (None, {}, b"conversation-7", None),
    "a shared topic and a name": (None, {"tenant": "acme"}, None, Why.TENANT),
    "a shared topic and an unknown name": (None, {"tenant": "else"}, None, Why.TENANT),
    "a shared topic and a tenant's key": (None, {}, b"acme", Why.TENANT),
}


@pytest.mark.parametrize(("landing", "said", "key", "expected"), BY_TOPIC.values(), ids=BY_TOPIC)
def test_in_mode_topic_the_tenant_is_the_topics(landing, said, key, expected):
    found = identities(**TOPIC).check(claims(key=key, **said), BODY, landing, NOW_S)
    if isinstance(expected, Why):
        assert found.reason is Reason.BAD_IDENTITY
    else:
        assert found.tenant == expected


CLASSES = [("low", "high", False), ("low", "medium", False), ("medium", "low", True), ("high", "high", True)]


@pytest.mark.parametrize("landing", ["acme", None])
@pytest.mark.parametrize(("topic", "claim", "is_taken"), CLASSES)
def test_in_mode_topic_the_class_is_at_most_the_topics(landing, topic, claim, is_taken):
    made = claims(key=None, priority=claim)
    found = identities(**TOPIC).check(made, BODY, landing, NOW_S, Priority(topic))
    assert isinstance(found, Fault) is not is_taken
    if is_taken:
        assert found.priority == claim
    else:
        assert found.reason is Reason.BAD_IDENTITY


def test_in_mode_topic_a_word_that_is_no_class_gets_the_answer_that_it_gets_in_every_mode():
    made = claims(key=None, priority="urgent")
    assert identities(**TOPIC).check(made, BODY, "acme", NOW_S, Priority.LOW).priority == "urgent"


@pytest.mark.parametrize("words", [{"user_tier": "vip"}, {"source": "production"}, {"path": "/fast"}])
def test_in_mode_topic_no_word_beside_the_class_raises_it(words):
    rules = StreamsSettings(
        streams={"classes": {"user_tier": {"vip": "high"}, "source": {"production": "high"}, "path": {"/f": "high"}}}
    )
    proven = identities(**TOPIC).check(claims(key=None, **words), BODY, "acme", NOW_S, Priority.LOW)
    event = codec.decode_event(BODY, proven, None, ORIGIN, NOW_S)
    request = verification.verify(event, Priority.LOW, Length.SHORT, Rulebook(rules).rules({"replies": 4}), NOW_S)
    assert request.priority == "low"


def test_in_mode_trusted_everything_is_believed():
    made = claims(tenant="acme", priority="high", user_tier="vip")
    assert identities().check(made, BODY, None, NOW_S) == made


def test_in_mode_trusted_too_a_tenants_own_topic_is_for_it_alone():
    trusted = identities(tenants=["acme"])
    assert trusted.check(claims(key=b"k"), BODY, "acme", NOW_S).tenant == "acme"
    assert isinstance(trusted.check(claims(tenant="evil"), BODY, "acme", NOW_S), Fault)


def refused(made):
    rules = Rulebook(StreamsSettings()).rules({"replies": 4, "replies.a": 1})
    return verification.refuse(ORIGIN, NOW_S, made, rules, Fault(Reason.BAD_IDENTITY, "why"))


def test_a_refused_identity_cannot_end_the_request_of_another():
    refusal = refused(claims(id="victim", tenant="victim"))
    assert (refusal.id, refusal.tenant) == ("requests.high.short-1-7", "anonymous")


def test_its_answer_can_still_be_matched_by_its_sender():
    made = codec.read_headers([("kafka_correlationId", b"c"), ("kafka_replyTopic", b"replies.a")])
    reply = refused(made).reply
    assert (reply.topic, reply.correlation_header) == ("replies.a", "kafka_correlationId")


def test_of_a_record_that_cannot_be_read_nothing_unproven_is_kept():
    made = codec.read_headers([("rampmeter_id", b"victim"), ("rampmeter_tenant", b"victim")])
    left = identities(**SIGNED).believed(made, b"{", None, NOW_S)
    assert (left.id, left.tenant) == (None, None)
    sealed = codec.read_headers([(codec.TOKEN_HEADER, token(value=b"{").encode())])
    assert identities(**SIGNED).believed(sealed, b"{", None, NOW_S).id == "r1"
    assert identities().believed(made, b"{", None, NOW_S) == made


def test_a_request_of_our_client_passes():
    ask = Ask([{"role": "user", "content": "hi"}], tenant="acme", id="x", user_tier="vip", source="staging")
    value = ask.body()
    sealed = tokens.seal(ask.token(value, "replies", NOW_S, 60), "old", OLD)
    headers = [*ask.headers("replies"), (codec.TOKEN_HEADER, sealed.encode())]
    event = codec.decode_event(value, codec.read_headers(headers), b"acme", ORIGIN, NOW_S)
    proven = check(event.claims, value)
    rules = Rulebook(StreamsSettings()).rules({"replies": 4})
    request = verification.verify(
        codec.decode_event(value, proven, None, ORIGIN, NOW_S), Priority.MEDIUM, Length.SHORT, rules, NOW_S
    )
    assert isinstance(request, Request)
    assert (request.id, request.tenant, request.user_tier) == ("x", "acme", "vip")
