import json
from dataclasses import replace

import msgspec
import pytest

from streams.identity import Rulebook
from streams.policy import priority, verification
from streams.policy.verification import Rules
from streams.settings import StreamsSettings
from tests.support.builders import body
from topics import codec, trace_context
from topics.outcomes import Outcome, Reason
from topics.records import Length, Origin, Priority, Request
from topics.settings import Model

NOW_S = 1_000.0
ORIGIN = Origin(topic="requests.high.short", partition=1, offset=7)
RULES = Rules(
    models={"llama-3-8b": Model(context_tokens=1000, max_output_tokens=500)},
    default_model="llama-3-8b",
    reply_allowed=("replies", "replies.*"),
    reply_default="replies",
    reply_partitions={"replies": 4, "replies.mine": 2},
    max_body_bytes=100_000,
)


def verify(headers=(), key=b"acme", rules=RULES, envelope=None, **fields):
    value = body(**fields)
    if envelope is not None:
        value = json.dumps({**envelope, "body": json.loads(value)}).encode()
    event = codec.decode_event(value, codec.read_headers(headers), key, ORIGIN, NOW_S - 1)
    return verification.verify(event, Priority.MEDIUM, Length.SHORT, rules, NOW_S)


def test_a_bare_body_becomes_a_request_with_defaults():
    assert verify() == Request(
        id="requests.high.short-1-7",
        tenant="acme",
        model="llama-3-8b",
        priority=Priority.MEDIUM,
        length_claim=Length.SHORT,
        reply=verification.ReplyAddress(topic="replies"),
        origin=ORIGIN,
        arrived_s=NOW_S - 1,
        prompt_tokens=3,
        body=msgspec.Raw(body()),
    )


def test_a_request_without_any_sender_is_anonymous():
    assert verify(key=None).tenant == "anonymous"


REFUSED = {
    "unknown model": ({"model": "gpt-9"}, Reason.UNKNOWN_MODEL, "model 'gpt-9' is not known; known: llama-3-8b"),
    "endless model name": ({"model": "x" * 500}, Reason.UNKNOWN_MODEL, "…' is not known"),
    "max_tokens of 0": ({"max_tokens": 0}, Reason.MAX_TOKENS, "max_tokens is 0; this model allows 1 to 500"),
    "max_tokens below 0": ({"max_tokens": -5}, Reason.MAX_TOKENS, "max_tokens is -5; this model allows 1 to 500"),
    "absurd max_tokens": ({"max_tokens": 10**9}, Reason.MAX_TOKENS, "max_tokens is 1000000000;"),
    "endless max_tokens": ({"max_tokens": 10**300}, Reason.MAX_TOKENS, "this model allows 1 to 500"),
    "max_completion_tokens": ({"max_completion_tokens": 501}, Reason.MAX_TOKENS, "max_tokens is 501;"),
    "no choices": ({"n": 0}, Reason.MAX_TOKENS, "n is 0; it must be 1 to 128"),
    "absurd choices": ({"n": 129}, Reason.MAX_TOKENS, "n is 129; it must be 1 to 128"),
    "no candidates": ({"best_of": 0}, Reason.MAX_TOKENS, "best_of is 0; it must be 1 to 128"),
    "absurd candidates": ({"n": 1, "best_of": 500}, Reason.MAX_TOKENS, "best_of is 500; it must be 1 to 128"),
}


@pytest.mark.parametrize(("fields", "reason", "words"), REFUSED.values(), ids=REFUSED)
def test_a_body_that_cannot_be_served_is_refused(fields, reason, words):
    refusal = verify(**fields)
    assert (refusal.outcome, refusal.reason) == (Outcome.REJECTED_INVALID, reason)
    assert words in refusal.detail
    assert len(refusal.detail) < 400


CLAIMS = {
    "unknown priority": (
        {"priority": "urgent"}, Outcome.REJECTED_INVALID, Reason.UNKNOWN_PRIORITY,
        "priority 'urgent' is not one of high, medium, low",
    ),
    "empty priority": ({"priority": ""}, Outcome.REJECTED_INVALID, Reason.UNKNOWN_PRIORITY, "priority ''"),
    "deadline in the past": (
        {"deadline_s": NOW_S - 2.5}, Outcome.REJECTED_DEADLINE, Reason.DEADLINE_PASSED, "passed 2.500 s before",
    ),
    "deadline now": ({"deadline_s": NOW_S}, Outcome.REJECTED_DEADLINE, Reason.DEADLINE_PASSED, "passed 0.000 s"),
    "forbidden reply topic": (
        {"reply_topic": "lanes.default.high.short"}, Outcome.REJECTED_INVALID, Reason.REPLY_TOPIC_FORBIDDEN,
        "reply topic 'lanes.default.high.short' is not allowed; allowed: replies, replies.*",
    ),
    "missing reply topic": (
        {"reply_topic": "replies.gone"}, Outcome.REJECTED_INVALID, Reason.REPLY_TOPIC_MISSING,
        "reply topic 'replies.gone' does not exist; create it first",
    ),
    "id with a space": ({"id": "a b"}, Outcome.REJECTED_INVALID, Reason.BAD_HEADER, "id must be 1 to 128 of"),
    "empty id": ({"id": ""}, Outcome.REJECTED_INVALID, Reason.BAD_HEADER, "id must be"),
    "endless id": ({"id": "a" * 129}, Outcome.REJECTED_INVALID, Reason.BAD_HEADER, "id must be"),
    "tenant with braces": ({"tenant": "a}b{"}, Outcome.REJECTED_INVALID, Reason.BAD_HEADER, "tenant must be"),
    "tenant with a line break": ({"tenant": "a\n"}, Outcome.REJECTED_INVALID, Reason.BAD_HEADER, "tenant must be"),
}  # fmt: skip


@pytest.mark.parametrize(("claims", "outcome", "reason", "words"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim_that_cannot_be_believed_is_refused(claims, outcome, reason, words):
    refusal = verify(envelope=claims)
    assert (refusal.outcome, refusal.reason) == (outcome, reason)
    assert words in refusal.detail


HEADERS = {
    "not utf-8": [("rampmeter_id", b"\xff")],
    "deadline in words": [("rampmeter_deadline_s", b"soon")],
    "partition in words": [("kafka_replyPartition", b"first")],
    "too many": [(f"x{n}", b"") for n in range(65)],
}


def test_the_trace_of_a_record_is_that_of_its_request_or_of_its_refusal():
    sent = [("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("tracestate", b"a=1")]
    assert trace_context.of(verify(sent)).headers() == sent
    assert verify(sent, rules=replace(RULES, models={})).trace.headers() == sent
    assert verify(sent[1:]).tracestate is None


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_tampered_headers_are_refused(headers):
    refusal = verify(headers)
    assert (refusal.outcome, refusal.reason) == (Outcome.REJECTED_INVALID, Reason.BAD_HEADER)


@pytest.mark.parametrize("deadline", [b"nan", b"-inf", b"0"])
def test_a_deadline_that_is_no_future_time_has_passed(deadline):
    assert verify([("rampmeter_deadline_s", deadline)]).reason is Reason.DEADLINE_PASSED


def test_a_prompt_beyond_the_context_is_too_large():
    refusal = verify(text="x" * 3000, max_tokens=300)
    assert (refusal.outcome, refusal.reason) == (Outcome.REJECTED_TOO_LARGE, Reason.CONTEXT_LENGTH)
    assert "exceed the context of 1000" in refusal.detail


def test_a_body_too_large_for_a_record_of_ours_is_refused_whatever_it_holds():
    refusal = verify(tools=[{"x": "y" * 100_000}])
    assert (refusal.outcome, refusal.reason) == (Outcome.REJECTED_TOO_LARGE, Reason.BODY_TOO_LARGE)
    assert "at most 100000 fit" in refusal.detail


def test_a_refusal_goes_to_the_address_that_the_sender_may_use():
    mine = [("kafka_replyTopic", b"replies.mine"), ("kafka_replyPartition", b"1"), ("kafka_correlationId", b"\x00\xff")]
    refusal = verify(mine, model="gpt-9")
    assert (refusal.reply.topic, refusal.reply.partition, refusal.reply.correlation_b64) == ("replies.mine", 1, "AP8=")


def test_a_refused_address_falls_back_to_the_default_and_drops_the_partition():
    refusal = verify([("kafka_replyTopic", b"secrets"), ("kafka_replyPartition", b"1"), ("kafka_correlationId", b"c")])
    assert (refusal.reply.topic, refusal.reply.partition) == ("replies", None)
    assert refusal.reply.correlation_header == "kafka_correlationId"


@pytest.mark.parametrize("partition", [b"2", b"9999", b"\xff\xff\xff\xff", b"\x7f\x00\x00\x00"])
def test_a_reply_partition_out_of_range_is_left_to_the_key(partition):
    request = verify([("kafka_replyTopic", b"replies.mine"), ("kafka_replyPartition", partition)])
    assert (request.reply.topic, request.reply.partition) == ("replies.mine", None)


def test_the_pattern_does_not_match_a_topic_that_only_begins_alike():
    assert verify([("kafka_replyTopic", b"repliesX")]).reason is Reason.REPLY_TOPIC_FORBIDDEN


def test_a_bad_id_is_replaced_by_the_origin_and_a_good_one_is_kept():
    assert verify(envelope={"id": "a b"}).id == "requests.high.short-1-7"
    assert verify(envelope={"id": "r1"}, model="gpt-9").id == "r1"


@pytest.mark.parametrize(
    ("identity", "taken"),
    [
        ("requests.low.long-3-99", True),
        ("requests.acme.high.short-0-1", True),
        ("requests.low.long-3-99~replay-1", False),
        ("order-3-99", False),
    ],
)
def test_an_id_that_looks_like_the_place_of_a_record_is_refused(identity, taken):
    made = verify([("rampmeter_id", identity.encode())])
    assert (getattr(made, "reason", None) == Reason.BAD_HEADER) is taken
    assert made.id == (codec.fallback_id(ORIGIN) if taken else identity), "the record at that place gets this answer"


def test_no_message_holds_the_prompt():
    everything = [f for f, *_ in REFUSED.values()]
    details = [verify(**{"text": "SENTINEL", **fields}).detail for fields in everything]
    assert not any("SENTINEL" in detail for detail in details)


@pytest.mark.parametrize("claim", ["high", "medium", "low"])
def test_a_known_priority_is_taken_as_the_claim(claim):
    assert verify(envelope={"priority": claim}).priority == claim


def test_all_candidates_of_best_of_count():
    assert verify(n=2, best_of=8).choices == 8


def test_pictures_count_by_a_fixed_estimate_and_not_by_their_bytes():
    rules = replace(RULES, models={"llama-3-8b": Model(image_tokens=100, context_tokens=1000)})
    parts = [{"type": "text", "text": "what?"}] + 2 * [
        {"type": "image_url", "image_url": {"url": "data:" + "x" * 4000}}
    ]
    messages = [{"role": "user", "content": parts}]
    assert verify(rules=rules, messages=messages).prompt_tokens == 1 + 200
    crowd = [{"role": "user", "content": 10 * parts}]
    assert verify(rules=rules, messages=crowd).reason is Reason.CONTEXT_LENGTH


def test_tools_are_part_of_the_prompt_and_of_the_template():
    tools = [{"type": "function", "function": {"name": "f" * 400}}]
    plain, equipped = verify(), verify(tools=tools)
    assert equipped.prompt_tokens > plain.prompt_tokens + 100
    assert plain.template == ""
    assert equipped.template != ""


CLASS_RULES = priority.Rules(
    user_tier={"vip": Priority.HIGH, "anonymous": Priority.LOW},
    model_kind={"experimental": Priority.LOW, "standard": Priority.HIGH},
    path={"/v1/batch": Priority.LOW, "/v1": Priority.HIGH},
    tenant_cap={"modest": Priority.MEDIUM},
)
CLASSED = {
    "a plain claim": ({"priority": "high"}, b"acme", Priority.HIGH),
    "the topic's claim": ({}, b"acme", Priority.MEDIUM),
    "a good tier does not raise it": ({"user_tier": "vip"}, b"acme", Priority.MEDIUM),
    "a tier": ({"priority": "high", "user_tier": "anonymous"}, b"acme", Priority.LOW),
    "an unknown tier": ({"priority": "high", "user_tier": "gold"}, b"acme", Priority.MEDIUM),
    "a path": ({"priority": "high", "path": "/v1/batches"}, b"acme", Priority.LOW),
    "a tenant's cap": ({"priority": "high"}, b"modest", Priority.MEDIUM),
    "empty words are not said": (
        {"priority": "high", "user_tier": "", "path": "", "source": ""},
        b"acme",
        Priority.HIGH,
    ),
}


@pytest.mark.parametrize(("said", "key", "expected"), CLASSED.values(), ids=CLASSED)
def test_the_class_is_the_claim_held_to_the_rules(said, key, expected):
    assert verify(key=key, rules=replace(RULES, class_rules=CLASS_RULES), envelope=said).priority is expected


def test_the_kind_of_the_model_counts():
    models = {"llama-3-8b": Model(kind="experimental")}
    rules = replace(RULES, models=models, class_rules=CLASS_RULES)
    assert verify(rules=rules, envelope={"priority": "high"}).priority is Priority.LOW


def test_the_claim_is_what_the_record_says_before_the_topic():
    assert verification.claimed(codec.Claims(priority="low"), Priority.HIGH) is Priority.LOW
    assert verification.claimed(codec.Claims(), Priority.HIGH) is Priority.HIGH


OWNED = replace(
    RULES,
    reply_own={"acme": ("replies.acme", "replies.acme.*"), "open": ("out.*",)},
    reply_partitions=dict.fromkeys(
        ("replies", "replies.acme", "replies.acme.1", "replies.mine", "replies.acmeX", "out.1"), 1
    ),
)
REPLIES = {
    "the tenant's default": ("acme", None, "replies.acme"),
    "one of its own": ("acme", "replies.acme.1", "replies.acme.1"),
    "the site's default": ("acme", "replies", "replies"),
    "a shared one, for a tenant with its own": ("acme", "replies.mine", None),
    "a shared one, for another": ("other", "replies.mine", "replies.mine"),
    "one that only begins alike": ("other", "replies.acmeX", "replies.acmeX"),
    "another tenant's": ("other", "replies.acme", None),
    "another tenant's by pattern": ("other", "replies.acme.1", None),
    "another's, for a tenant with its own": ("acme", "out.1", None),
    "a tenant's by pattern": ("open", "out.1", "out.1"),
    "the default of a tenant with patterns only": ("open", None, "replies"),
    "nobody's tenant": ("", "replies.acme", None),
}


@pytest.mark.parametrize(("tenant", "topic", "expected"), REPLIES.values(), ids=REPLIES)
def test_a_reply_topic_is_for_those_who_have_it_on_their_list(tenant, topic, expected):
    found = verify([("rampmeter_tenant", tenant.encode())], key=None, rules=OWNED, envelope={"reply_topic": topic})
    if expected is None:
        assert found.reason is Reason.REPLY_TOPIC_FORBIDDEN
        assert found.reply.topic == ("replies.acme" if tenant == "acme" else "replies")
    else:
        assert found.reply.topic == expected


def test_another_tenants_list_is_not_shown():
    assert "acme" not in verify(key=b"other", rules=OWNED, envelope={"reply_topic": "replies.acme"}).detail[40:]


SITE = StreamsSettings(
    topics={"prefix": "p.", "reply_topics": ("replies", "*"), "tenants": ("acme",)},
    identity={"reply_topics": {"greedy": ("*",)}},
)
INTERNAL = [
    "__consumer_offsets", "__transaction_state", "p.requests.high.short", "p.requests.acme.high.short",
    "p.requests.gone.high.short", "p.lanes.default.high.short", "p.lanes.other.aged.long", "p.deferred.5s",
    "p.retries.1s", "p.usage", "p.decisions", "p.telemetry", "p.control", "p.balances", "p.estimates", "p.dead_letters",
    "p.rampmeter-streams-spend-changelog", "p.rampmeter-streams-__assignor-__leader", "p.other-app-changelog",
    "p.my-group-by-repartition",
]  # fmt: skip


@pytest.mark.parametrize("topic", INTERNAL)
@pytest.mark.parametrize("tenant", [b"acme", b"greedy"])
def test_an_internal_topic_is_refused_whatever_a_list_says(topic, tenant):
    rules = Rulebook(SITE).rules({**dict.fromkeys(INTERNAL, 4), "p.replies": 4})
    found = verify(key=tenant, rules=rules, envelope={"reply_topic": topic})
    assert (found.reason, found.reply.topic) == (Reason.REPLY_TOPIC_FORBIDDEN, "p.replies")


def test_a_list_of_everything_allows_every_other_topic():
    rules = Rulebook(SITE).rules({"p.answers": 4, "p.replies": 4})
    assert verify(key=b"greedy", rules=rules, envelope={"reply_topic": "p.answers"}).reply.topic == "p.answers"


def test_a_tenants_default_that_may_not_be_used_is_not_used():
    site = StreamsSettings(identity={"reply_topics": {"acme": ("usage",), "big": ("replies.gone",)}})
    rules = Rulebook(site).rules({"usage": 4, "replies": 4})
    assert verify(rules=rules).reply.topic == "replies"
    assert verify(rules=rules).reason is Reason.REPLY_TOPIC_FORBIDDEN
    assert verify(key=b"big", rules=rules).reason is Reason.REPLY_TOPIC_MISSING
    assert verify(key=b"big", rules=rules).reply.topic == "replies"
