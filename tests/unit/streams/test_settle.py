import types
from itertools import pairwise

import pytest
from prometheus_client import REGISTRY

from streams import recall
from streams.budgets import Settled
from streams.estimates import Estimates
from streams.limits import LiveLimits
from streams.memory import Memory
from streams.recall import Recall
from streams.settings import Bucket, Calibration, History, Streams, StreamsSettings
from streams.settle import Settling, settling
from streams.tables import Rows
from tests.support.builders import usage
from tests.support.clock import FakeClock
from topics import codec
from topics.errors import PipelineError
from topics.notes import Balances
from topics.outcomes import Outcome
from topics.records import Length, Tokens
from topics.settings import Model
from topics.trace_context import TraceContext

pytestmark = pytest.mark.asyncio
DEEP = b'{"x":' + b"[" * 100_000
MODELS = {"llama-3-8b": Model(input_units_per_token=0.1, output_units_per_token=1.0)}
SECTION = Streams(
    history=History(min_samples=20, quantile=0.9),
    calibration=Calibration(min_samples=20, every_s=60.0, min_shared=4.0),
    spend_window_s=60.0,
    tenant_budgets={"big": Bucket(refill_units_per_s=20_000)},
)
SETTINGS = StreamsSettings(streams=SECTION, models=MODELS, default_model="llama-3-8b")


class Event:
    def __init__(self, value, at_s, partition=0, headers=()):
        self.message = types.SimpleNamespace(value=value, timestamp=at_s, partition=partition, headers=headers)


class Site:
    """A settle agent whose ledger settles each id once."""

    memory = Memory(b"1", 0.0)

    def __init__(self, settings=SETTINGS):
        self.clock, self.table, self.sent, self.buried = FakeClock(wall_s=60_000.0), {}, [], []
        self.charges, self.steps, self.balances, self._settled = [], [], [], set()
        self.estimates = Estimates(settings, self.clock)
        rows, self.limits = Rows(self.table, settings.streams, self.clock), LiveLimits(settings.streams)
        known = Recall(settings, self.clock)
        parts = Settling(
            settings, self.clock, self, self._send, self._bury, rows, self.estimates, self.limits, known, "w1"
        )
        self.handle = settling(parts)

    async def remembered(self):
        return self.memory

    async def try_settle(self, charges, known):
        if known is not self.memory:
            return None
        self.steps.append("settle")
        self.charges += charges
        results = [self._result(charge) for charge in charges]
        return [
            Settled(result, charge.reserved_units - charge.units)
            for result, charge in zip(results, charges, strict=True)
        ]

    def _result(self, charge):
        result = "repeat" if charge.id in self._settled else "partial" if charge.partial else "settled"
        self._settled.add(charge.id)
        return result

    def take_balances(self):
        return self.balances.pop() if self.balances else None

    async def _send(self, records):
        self.steps.append(f"send with {len(self.table)} rows")
        self.sent += records

    async def _bury(self, event):
        self.buried.append(event)

    async def put(self, *usages, partition=0):
        events = [Event(codec.encode(one), self.clock.wall_s(), partition) for one in usages]
        await self.handle(events)

    def decisions(self):
        return [codec.decode_decision(record.value) for record in self.sent if record.topic == "decisions"]

    def told(self):
        return [codec.decode_estimate(record.value) for record in self.sent if record.topic == "estimates"]

    def rows(self, prefix):
        return {key: row for (key, _), row in self.table.items() if key.startswith(prefix)}


@pytest.fixture
def site():
    return Site()


def many(count, start=0, **fields):
    return [usage(id=f"r{start + number}", **fields) for number in range(count)]


async def test_an_attempt_is_charged_what_its_tokens_cost_at_the_price_of_its_admission(site):
    await site.put(usage(tokens=Tokens(prompt=100, output=50, cached=0), coefficient=2.0, reserved_units=150.0))
    charge = site.charges[0]
    assert (charge.units, charge.reserved_units, charge.lane, charge.attempt) == (120.0, 150.0, "medium.short", 1)


async def test_a_decision_tells_what_was_reserved_used_and_given_back(site):
    expected = {"expected_prompt_tokens": 90, "expected_output_tokens": 200, "expected_kv_token_s": 300.0}
    await site.put(usage(reserved_units=150.0, attempt=2, length=Length.LONG, kv_token_s=250.0, **expected))
    decision = site.decisions()[0]
    assert (decision.stage, decision.verdict, decision.reason, decision.by) == (
        "settlement", "settled", "completed", "w1",
    )  # fmt: skip
    told = {
        "reserved_units": 150.0, "real_units": 60.0, "refunded_units": 90.0, "prompt_tokens": 100,
        "output_tokens": 50, "attempt": 2, "tenant": "acme", "pool": "default", "length": "long",
        "kv_token_s": 250.0,
        **expected,
    }  # fmt: skip
    assert decision.inputs.items() >= told.items()


async def test_rows_are_written_between_the_charge_and_the_sends(site):
    await site.put(usage())
    assert site.steps == ["settle", "send with 2 rows"]


async def test_a_repeat_is_in_the_log_and_counts_nowhere(site):
    await site.put(usage())
    before = {key: dict(row) for key, row in site.table.items()}
    await site.put(usage())
    assert [decision.verdict for decision in site.decisions()] == ["settled", "repeat"]
    assert site.table == before


async def test_spending_is_added_up_in_a_batch_and_over_batches(site):
    await site.put(*many(3))
    await site.put(*many(2, start=3))
    assert site.rows("spend|") == {
        "spend|acme|llama-3-8b|medium|short": {"requests": 5, "units": 300.0, "output_tokens": 250}
    }


async def test_a_failed_attempt_that_is_tried_again_is_spending_and_no_history(site):
    await site.put(usage(partial=True, outcome=Outcome.FAILED))
    assert site.charges[0].partial
    assert len(site.rows("spend|")) == 1
    assert site.rows("kind|") == {}


async def test_a_record_that_nobody_can_read_is_buried_and_the_others_settle(site):
    good = Event(codec.encode(usage()), 60_000.0)
    bad = [Event(value, 60_000.0) for value in (b"\xff", None, b"{}", DEEP)]
    await site.handle([*bad, good])
    assert site.buried == bad
    assert len(site.charges) == 1


async def test_a_batch_of_nothing_but_garbage_asks_no_ledger_and_sends_nothing(site):
    await site.handle([Event(b"garbage", 60_000.0)])
    assert (site.steps, len(site.buried)) == ([], 1)


async def test_balances_go_out_with_the_batch(site):
    site.balances.append(Balances(at_s=1.0, by="w1", levels={"tenant:acme": -5.0}))
    await site.put(usage())
    sent = [codec.decode_balances(record.value) for record in site.sent if record.topic == "balances"]
    assert [balances.levels for balances in sent] == [{"tenant:acme": -5.0}]


async def test_a_kind_is_told_of_once_enough_of_it_were_seen(site):
    await site.put(*many(19, template="t1", service_s=1.0, expected_prompt_tokens=25))
    assert site.told() == []
    site.clock.advance(5)
    await site.put(*many(1, start=19, template="t1", service_s=1.0, expected_prompt_tokens=25))
    told = site.told()[0]
    assert (told.tenant, told.model, told.template, told.samples) == ("acme", "llama-3-8b", "t1", 20)
    assert 50 <= told.output_tokens <= 54
    assert 1.0 <= told.service_s <= 1.09
    assert told.prompt_ratio == 4.0
    assert site.estimates.of("acme", "llama-3-8b", "t1") == told


async def test_a_kind_that_stays_as_it_was_is_not_told_of_again(site):
    for turn in range(10):
        await site.put(*many(30, start=30 * turn))
        site.clock.advance(10)
    assert len(site.told()) == 1


async def test_a_kind_that_changes_all_the_time_is_told_of_every_few_seconds(site):
    for turn in range(100):
        await site.put(*many(30, start=30 * turn, tokens=Tokens(prompt=10, output=3 ** (turn % 9))))
        site.clock.advance(0.1)
    assert 2 <= len(site.told()) <= 5


async def test_a_kind_in_use_is_told_of_again_before_it_is_forgotten(site):
    for turn in range(70):
        await site.put(*many(30, start=30 * turn))
        site.clock.advance(60)
        assert turn == 0 or site.estimates.of("acme", "llama-3-8b", "") is not None


def busy(count, start=0, slope=2.0, shared=8, **fields):
    engine_s = slope * 60 / 1000
    return many(count, start, engine_s=engine_s, service_s=engine_s * shared, **fields)


async def test_a_coefficient_takes_one_bounded_step_a_window(site):
    for turn in range(13):
        await site.put(*busy(30, start=30 * turn))
        site.clock.advance(10)
    steps = [told for told in site.told() if told.coefficient]
    assert [told.coefficient for told in steps] == [1.1]
    assert (steps[0].tenant, steps[0].template) == ("", "")
    assert site.estimates.coefficient("llama-3-8b") == 1.1


async def test_a_window_in_which_another_worker_took_the_step_takes_none(site):
    await site.put(*busy(30))
    site.clock.advance(30)
    elsewhere = Site()
    elsewhere.clock.advance(30)
    await elsewhere.put(*busy(30))
    elsewhere.clock.advance(60)
    await elsewhere.put(*busy(1, start=30))
    theirs = next(told for told in elsewhere.told() if told.coefficient)
    site.estimates.note(theirs)
    site.clock.advance(31)
    await site.put(*busy(1, start=30))
    assert [told for told in site.told() if told.coefficient] == []


async def test_a_coefficient_that_holds_is_told_again_before_the_topic_forgets_it(site):
    await site.put(*busy(30, slope=1.2))
    for turn in range(40):
        site.clock.advance(60)
        await site.put(*busy(30, start=30 * (turn + 1), slope=1.2))
    steps = [told for told in site.told() if told.coefficient]
    assert {told.coefficient for told in steps[1:]} == {steps[-1].coefficient}
    assert steps[-1].coefficient == pytest.approx(1.2, rel=0.09)
    gaps_s = [after.at_s - before.at_s for before, after in pairwise(steps[1:])]
    assert gaps_s
    assert min(gaps_s) >= 900


@pytest.mark.parametrize("fields", [{"engine_s": None}, {"engine_s": 0.0}])
async def test_a_coefficient_is_frozen_while_engine_time_is_unknown(site, fields):
    for turn in range(20):
        await site.put(*many(30, start=30 * turn, service_s=1.0, **fields))
        site.clock.advance(10)
    assert site.estimates.coefficient("llama-3-8b") == 1.0


@pytest.mark.parametrize("how", ["everywhere", "for the model"])
async def test_calibration_can_be_switched_off(how):
    model = MODELS["llama-3-8b"].model_copy(update={"calibrate": how != "for the model"})
    calibration = SECTION.calibration.model_copy(update={"enabled": how != "everywhere"})
    section = SECTION.model_copy(update={"calibration": calibration})
    site = Site(SETTINGS.model_copy(update={"streams": section, "models": {"llama-3-8b": model}}))
    for turn in range(13):
        await site.put(*busy(30, start=30 * turn))
        site.clock.advance(10)
    assert [told for told in site.told() if told.coefficient] == []


async def test_a_model_that_the_settings_no_longer_know_is_charged_and_teaches_nothing(site):
    await site.put(*many(30, model="gone", reserved_units=7.0))
    assert {charge.units for charge in site.charges} == {7.0}
    assert site.told() == []


def sample(name, **labels):
    return REGISTRY.get_sample_value(f"rampmeter_streams_{name}", labels)


async def test_memory_times_time_is_added_up_by_pool_once_an_attempt_and_not_where_it_is_unknown(site):
    before = sample("kv_token_seconds_total", pool="cpu") or 0.0
    used = [usage(pool="cpu", kv_token_s=250.0), usage(pool="cpu", kv_token_s=250.0), usage(id="r2", pool="cpu")]
    await site.put(*used)
    assert sample("kv_token_seconds_total", pool="cpu") - before == 250.0


async def test_prediction_errors_are_ratios_of_real_to_expected_by_length(site):
    names = {"output": "output_error_ratio", "cost": "cost_error_ratio"}

    def sums():
        return {what: sample(f"{name}_sum", length="long") or 0.0 for what, name in names.items()}

    before = sums()
    fields = {"length": Length.LONG, "expected_output_tokens": 100, "reserved_units": 40.0}
    await site.put(usage(**fields), usage(id="r2", outcome=Outcome.FAILED, **fields))
    assert {what: value - before[what] for what, value in sums().items()} == {"output": 0.5, "cost": 1.5}


async def test_fairness_is_served_cost_over_entitlement_of_the_last_whole_window(site):
    pool = {"pool": "default"}
    await site.put(*many(3, tenant="small"), *many(6, start=3, tenant="big"))
    site.clock.advance(60)
    await site.put(*many(4, start=9, tenant="small"))
    assert sample("fairness_jain", **pool) == pytest.approx(1.0)
    site.clock.advance(60)
    await site.put(*many(1, start=13, tenant="small"), *many(6, start=14, tenant="big"))
    assert sample("fairness_jain", **pool) == pytest.approx(1.0), "one tenant alone is treated evenly"
    site.clock.advance(60)
    await site.put(usage(id="last"))
    assert sample("fairness_jain", **pool) == pytest.approx(16 / (2 * 10))


async def test_the_entitlement_of_fairness_follows_a_change_of_limits(site):
    site.limits.set("tenant", "small", Bucket(refill_units_per_s=20_000))
    await site.put(*many(6, tenant="small"), *many(6, start=6, tenant="big"))
    site.clock.advance(60)
    await site.put(usage(id="last"))
    assert sample("fairness_jain", pool="default") == pytest.approx(1.0)


async def test_what_was_charged_before_the_ledger_forgot_it_under_the_charge_is_not_charged_again(site, monkeypatch):
    log, before = recall.Told(), site.memory
    monkeypatch.setattr(recall, "read", lambda settings, since_s: log)

    async def try_settle(charges, known, settle=site.try_settle):
        if known is before:  # by now it has been lost, restored and marked anew
            site.memory, log.settled = Memory(b"2", site.clock.wall_s()), {("r0", None)}
            return None
        return await settle(charges, known)

    site.try_settle = try_settle
    await site.put(*many(2, finished_s=site.clock.wall_s() - 10.0))
    assert [charge.id for charge in site.charges] == ["r1"]
    assert {one.id: one.verdict for one in site.decisions()} == {"r0": "repeat", "r1": "settled"}


TRACES = [TraceContext(f"00-{number:032x}-{number:016x}-01", "sender=1") for number in (1, 2)]


def traced(number, headers):
    return Event(codec.encode(usage(id=f"r{number}")), 60_000.0, headers=headers)


async def test_a_batch_that_is_settled_is_one_span_that_links_to_the_traces_of_its_attempts(site, told):
    events = [traced(number, trace.headers()) for number, trace in enumerate(TRACES)]
    events += [traced(2, None), traced(3, {"traceparent": b"00-nobody"}), Event(b"garbage", 60_000.0)]
    await site.handle(events)
    (span,) = told()
    assert (span.name, span.parent) == ("process usage", None)
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [trace.parent[3:35] for trace in TRACES]
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "rampmeter-streams",
        "messaging.destination.name": "usage",
        "messaging.batch.message_count": 5,
    }


async def test_what_could_not_be_settled_is_not_told(site, told, monkeypatch):
    async def away(*_):
        raise PipelineError

    monkeypatch.setattr(site, "try_settle", away)
    with pytest.raises(PipelineError):
        await site.put(usage())
    assert told() == ()
