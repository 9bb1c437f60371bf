import json

import pytest

from rampmeter.door import bodies
from rampmeter.door.keys import Caller
from rampmeter.door.refusals import Refused
from topics.records import Length, Priority
from topics.settings import DEFAULT_MODELS

SENTINEL = "SENTINEL"
CALLER = Caller("web", "acme", Priority.MEDIUM, "vip", "production")


def asked(body, wait_s=None, caller=CALLER, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return bodies.asked(bodies.Posted(raw, named), caller, DEFAULT_MODELS, 1000.0, wait_s)


def chat(**fields):
    return {"messages": [{"role": "user", "content": SENTINEL}], **fields}


def test_tenant_class_and_source_are_those_of_the_key():
    ask = asked(chat(tenant="mallory", priority="high", stream=True))
    assert (ask.tenant, ask.priority, ask.user_tier, ask.source) == ("acme", Priority.MEDIUM, "vip", "production")
    assert ask.id.startswith("acme:")
    assert ask.stream


@pytest.mark.parametrize(("named", "priority"), [("high", "medium"), ("medium", "medium"), ("low", "low")])
def test_a_lower_class_may_be_asked_for_and_no_higher_one(named, priority):
    assert asked(chat(), rampmeter_priority=named).priority == priority


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({}, "short"),
        ({"max_tokens": 256}, "short"),
        ({"max_tokens": 257}, "long"),
        ({"max_completion_tokens": 999}, "long"),
    ],
)
def test_length_is_claimed_by_what_the_body_says(fields, length):
    assert asked(chat(**fields)).length == Length(length)


def test_the_same_idempotency_key_is_the_same_request_of_its_tenant_only():
    assert asked(chat(), idempotency_key="order-17").id == "acme:order-17"
    assert asked(chat()).id != asked(chat()).id


@pytest.mark.parametrize(
    ("wait_s", "timeout", "deadline_s"),
    [(None, None, None), (600.0, None, 1600.0), (600.0, "30", 1030.0), (None, "7", 1007.0), (60.0, "90", 1060.0)],
)
def test_what_cannot_be_answered_in_time_is_of_no_use(wait_s, timeout, deadline_s):
    headers = {} if timeout is None else {"rampmeter_timeout_s": timeout}
    assert asked(chat(), wait_s, **headers).deadline_s == deadline_s


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b'{"messages": "SENTINEL', 400),
        (b'{"messages": "SENTINEL"}', 400),
        (b'{"messages": [], "max_tokens": "SENTINEL"}', 400),
        (b'{"body": {"messages": []}, "tenant": "SENTINEL"}', 400),
        (b'{"messages": []}, "tenant": "SENTINEL", "x": {}', 400),
        (b'{"messages": [], "model": "SENTINEL"}', 404),
        (b"[" * 100_000, 400),
    ],
)  # fmt: skip
def test_what_admission_would_refuse_is_refused_at_once_and_not_repeated(body, status):
    with pytest.raises(Refused) as raised:
        asked(body)
    assert raised.value.refusal.status == status
    assert SENTINEL not in str(raised.value) + str(raised.value.refusal)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rampmeter_priority", "urgent"),
        ("idempotency_key", "a b"),
        ("idempotency_key", "a:b"),
        ("rampmeter_timeout_s", "0"),
        ("rampmeter_timeout_s", "nan"),
        ("rampmeter_timeout_s", "soon"),
    ],
)
def test_a_header_that_says_nothing_is_refused(name, value):
    with pytest.raises(Refused) as raised:
        asked(chat(), **{name: value})
    assert raised.value.refusal.status == 400
