from dataclasses import replace

import msgspec
import pytest
from prometheus_client import REGISTRY

from streams.estimates import Estimates
from streams.identity import Identities
from streams.intake import Landed, Pricing
from streams.policy.verification import Fault, Refusal
from streams.settings import Bucket, History, Streams, StreamsSettings
from tests.support.builders import body
from tests.support.clock import FakeClock
from topics.codec import Claims
from topics.notes import Estimate
from topics.outcomes import Outcome, Reason
from topics.records import Length, Origin, Priority, Work
from topics.settings import Model

MODELS = {"llama-3-8b": Model(input_units_per_token=0.1, output_units_per_token=1.0)}
NOW_S = 1_700_000_000.0


def site(identities=None, models=MODELS, **streams):
    settings = StreamsSettings(streams=Streams(**streams), models=models)
    clock = FakeClock(NOW_S)
    estimates = Estimates(settings, clock)
    return Pricing(settings, clock, lambda: {"replies": 2}, "w1", estimates, identities or Identities(settings))


def landed(value, headers=(), key=b"acme"):
    return Landed(Origin(topic="requests.medium.short", partition=0, offset=7), value, key, headers, NOW_S)


def read(pricing, value=None, claimed_length=Length.SHORT, headers=(), **fields):
    value = body(**fields) if value is None else value
    return pricing.read(landed(value, headers), Priority.MEDIUM, claimed_length)


def known(pricing, work, **fields):
    request = work.request
    told = Estimate(tenant=request.tenant, model=request.model, template=request.template, at_s=NOW_S, samples=20)
    pricing._estimates.note(msgspec.structs.replace(told, **fields))


def test_an_unknown_kind_is_priced_by_what_it_declares():
    work = read(site(), max_tokens=100).item
    price = work.price
    assert isinstance(work, Work)
    assert (price.expected_output_tokens, price.service_s, price.coefficient) == (100, None, 1.0)
    assert price.cost_units == pytest.approx(0.1 * work.request.prompt_tokens + 100)


def test_a_known_kind_is_priced_by_what_it_needed():
    pricing = site()
    known(pricing, read(pricing, max_tokens=100).item, output_tokens=20.0, service_s=1.5, prompt_ratio=4.0)
    work = read(pricing, max_tokens=100).item
    assert (work.price.expected_output_tokens, work.price.service_s) == (20, 1.5)
    assert work.price.cost_units == pytest.approx(0.1 * 4 * work.request.prompt_tokens + 20)
    assert work.price.kv_token_s == pytest.approx((4 * work.request.prompt_tokens + 10) * 1.5)


def test_the_raw_prompt_estimate_stays_in_the_request_so_that_the_learned_ratio_is_stable():
    pricing = site()
    before = read(pricing).item
    known(pricing, before, prompt_ratio=4.0)
    assert read(pricing).item.request.prompt_tokens == before.request.prompt_tokens


def test_what_one_tenant_teaches_prices_no_other():
    pricing = site()
    known(pricing, read(pricing).item, output_tokens=3.0)
    other = pricing.read(landed(body(), key=b"other"), Priority.MEDIUM, Length.SHORT).item
    assert other.price.expected_output_tokens == 256


def test_choices_count_in_full_and_are_a_kind_of_their_own():
    pricing = site()
    known(pricing, read(pricing, max_tokens=50).item, output_tokens=10.0)
    three = read(pricing, max_tokens=50, n=3).item
    assert three.price.expected_output_tokens == 150
    known(pricing, three, output_tokens=60.0)
    assert read(pricing, max_tokens=50, n=3).item.price.expected_output_tokens == 60
    assert read(pricing, max_tokens=50).item.price.expected_output_tokens == 10


def test_the_price_carries_the_coefficient_in_force():
    pricing = site()
    pricing._estimates.note(
        Estimate(tenant="", model="llama-3-8b", template="", at_s=NOW_S, samples=200, coefficient=2.0)
    )
    plain, dear = read(site(), max_tokens=10).item.price, read(pricing, max_tokens=10).item.price
    assert (dear.coefficient, dear.cost_units) == (2.0, pytest.approx(2 * plain.cost_units))


def sample(claim):
    return REGISTRY.get_sample_value("rampmeter_streams_corrected_total", {"claim": claim}) or 0.0


@pytest.mark.parametrize(
    ("claimed", "fields", "actual"),
    [
        (Length.SHORT, {"max_tokens": 257}, Length.LONG),
        (Length.LONG, {"max_tokens": 10}, Length.SHORT),
        (Length.LONG, {"max_tokens": 257}, Length.LONG),
        (Length.SHORT, {"text": "x" * 12_000, "max_tokens": 1}, Length.LONG),
    ],
)
def test_a_misdeclared_request_is_corrected_and_counted(claimed, fields, actual):
    before = sample("length")
    work = read(site(), claimed_length=claimed, **fields).item
    assert work.price.length is actual
    assert work.request.length_claim is claimed
    assert sample("length") - before == (claimed is not actual)


def test_a_kind_that_took_long_is_long_although_nothing_is_declared():
    pricing = site(long_cost_units=10_000.0)
    assert read(pricing).item.price.length is Length.SHORT
    known(pricing, read(pricing).item, service_s=2.5)
    assert read(pricing).item.price.length is Length.LONG


def test_the_mode_of_the_settings_decides_what_is_long():
    big = {"max_tokens": 4000}
    assert read(site(length_mode="cost", long_cost_units=10_000.0), **big).item.price.length is Length.SHORT
    assert read(site(length_mode="declared", long_cost_units=10_000.0), **big).item.price.length is Length.LONG


def test_a_cost_is_large_by_the_recent_requests_of_the_pool():
    pricing = site(length_mode="cost", long_cost_quantile=0.5, long_cost_units=1e9)
    for _ in range(150):
        read(pricing, max_tokens=10)
    assert read(pricing, max_tokens=200).item.price.length is Length.SHORT, "too few were seen"
    for _ in range(100):
        read(pricing, max_tokens=10)
    assert read(pricing, max_tokens=200).item.price.length is Length.LONG
    assert read(pricing, max_tokens=10).item.price.length is Length.SHORT


def test_a_request_that_its_kind_shows_to_be_too_late_is_refused_at_once():
    pricing = site()
    soon = [("rampmeter_deadline_s", str(NOW_S + 2).encode())]
    assert isinstance(read(pricing, headers=soon).item, Work)
    known(pricing, read(pricing).item, service_s=3.0)
    refusal = read(pricing, headers=soon).item
    assert (refusal.outcome, refusal.reason) == (Outcome.REJECTED_DEADLINE, Reason.DEADLINE_UNREACHABLE)


class Doubting:
    """Believes nobody, or gives every claim to one tenant."""

    def __init__(self, tenant=None):
        self.tenant, self.asked = tenant, []

    def check(self, claims, value, landing_tenant, now_s, landing_priority=None, arrived_s=None):
        self.asked.append((claims.tenant, value, landing_tenant, now_s, landing_priority))
        return replace(claims, tenant=self.tenant) if self.tenant else Fault(Reason.BAD_IDENTITY, "who are you")

    def believed(self, claims, value, landing_tenant, now_s, arrived_s=None):
        return Claims()


def test_claims_are_proven_before_anything_else_is_looked_at():
    doubting = Doubting()
    value = body(max_tokens=-5)
    candidate = site(doubting).read(landed(value), Priority.HIGH, Length.SHORT, "acme")
    assert isinstance(candidate.item, Refusal)
    assert candidate.item.reason is Reason.BAD_IDENTITY
    assert doubting.asked == [("acme", value, "acme", NOW_S, Priority.HIGH)]


def test_only_the_proven_tenant_is_priced():
    assert read(site(Doubting("real"))).item.request.tenant == "real"


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[]", b"{}"])
def test_what_nobody_can_read_is_answered_and_referred_to(value):
    candidate = site().read(landed(value), Priority.MEDIUM, Length.SHORT)
    assert isinstance(candidate.item, Refusal)
    assert (candidate.dead_letter.offset, candidate.dead_letter.id) == (7, candidate.id)


@pytest.mark.parametrize("claimed", [b"requests.low.long-3-99", b"victim", b""])
def test_an_unreadable_record_is_answered_under_its_own_place_whatever_id_it_claims(claimed):
    headers = [("rampmeter_id", claimed)]
    candidate = site().read(landed(b"\xff", headers), Priority.MEDIUM, Length.SHORT)
    assert candidate.id == candidate.dead_letter.id == "requests.medium.short-0-7"


def test_an_unreadable_record_goes_to_no_address_that_is_not_proven():
    pricing = site(Doubting())
    headers = [("rampmeter_reply_topic", b"replies"), ("rampmeter_tenant", b"victim")]
    assert pricing.read(landed(b"\xff", headers), Priority.MEDIUM, Length.SHORT).item.tenant == "anonymous"


@pytest.mark.parametrize(
    ("key", "headers", "tenant"),
    [
        (None, (), "anonymous"),
        (b"acme", (), "acme"),
        (b"two words", (), "anonymous"),
        (None, [("rampmeter_tenant", b"b e")], "anonymous"),
        (b"acme", [("rampmeter_id", b"a b")], "acme"),
    ],
)
def test_a_refusal_is_always_of_some_tenant_so_that_none_passes_for_another(key, headers, tenant):
    refusal = site().read(landed(body(model="gone"), headers, key), Priority.MEDIUM, Length.SHORT).item
    assert isinstance(refusal, Refusal)
    assert refusal.tenant == tenant


def test_reply_topics_that_appear_are_seen_at_the_next_record():
    counts = {}
    settings = StreamsSettings(streams=Streams(tenant_budget=Bucket(refill_units_per_s=1.0)), models=MODELS)
    clock = FakeClock(NOW_S)
    pricing = Pricing(settings, clock, lambda: counts, "w1", Estimates(settings, clock), Identities(settings))
    assert isinstance(read(pricing).item, Refusal)
    counts = {"replies": 1}
    assert isinstance(read(pricing).item, Work)


def test_history_settings_have_a_use():
    pricing = site(long_cost_units=10_000.0, history=History(long_service_s=5.0))
    known(pricing, read(pricing).item, service_s=2.5)
    assert read(pricing).item.price.length is Length.SHORT
