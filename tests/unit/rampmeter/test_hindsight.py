"""Logged decisions made again.  The log is written by the parts that write it in production."""

from dataclasses import replace

import msgspec
import pytest

from autoscaler.policy import evidence as scaling
from autoscaler.policy import replicas
from autoscaler.policy.demand import Load
from autoscaler.policy.replicas import Memory
from autoscaler.settings import AutoscalerSettings
from rampmeter.hindsight import overrides
from rampmeter.hindsight.landed import Readings
from rampmeter.hindsight.redecide import Books
from rampmeter.hindsight.replay import Replaying
from streams.apply import Writer
from streams.budgets import Ask, Paid, Refused
from streams.cases import Case
from streams.estimates import Estimates
from streams.fallback import Fallback
from streams.fleet import Fleet
from streams.holding import Pending
from streams.identity import Identities
from streams.intake import Landed, Pricing
from streams.ledger_wire import Settled
from streams.limits import LiveLimits
from streams.policy import admission, degrade, evidence
from streams.policy.admission import Facts, Rules
from streams.policy.aging import Late
from streams.policy.sharing import Capacity, Share
from streams.settings import Streams, StreamsSettings
from tests.support.builders import WALL_S, body, usage, work
from tests.support.clock import FakeClock
from topics import codec
from topics.catalog import Landing
from topics.notes import Estimate
from topics.records import Decision, Length, Origin, Priority
from topics.telemetry import Telemetry

SETTINGS = StreamsSettings(streams=Streams(degrade={"medium": "local_share"}))
SCALER = AutoscalerSettings()
BOOKS = Books(SETTINGS, SCALER)
SPOT = Landing("requests.medium.short", Priority.MEDIUM, Length.SHORT)
CAPACITY = Capacity(1000.0 / 3, 2000.0)
BUSY = Share(9000.1, 5000.7, 40, 0.8 / 3, 3000.3, 100.1, 0.5)


class Log:
    """What a worker writes into the decision log, and the records that it read."""

    def __init__(self):
        self.clock = FakeClock(WALL_S)
        self.fleet = Fleet(SETTINGS, self.clock, iter([n / 7 % 1 for n in range(1000)]).__next__)
        self.estimates = Estimates(SETTINGS, self.clock)
        self.writer = Writer(SETTINGS, self.clock, self.fleet, "streams-1")
        self.pricing = Pricing(
            SETTINGS, self.clock, lambda: {"replies": 2}, "streams-1", self.estimates, Identities(SETTINGS)
        )
        self.rules = Rules(SETTINGS.streams.fair.window_s, SETTINGS.streams.fair.hold_s, SETTINGS.topics.defer_delays_s)
        self.landed, self.decisions = [], []

    def case(self, value=None, headers=(), **fields):
        """Read one landing record."""
        origin = Origin(topic=SPOT.topic, partition=0, offset=len(self.landed))
        value = body(**{"max_tokens": 100, **fields}) if value is None else value
        record = Landed(origin, value, b"acme", list(headers), self.clock.wall_s())
        self.landed.append(record)
        self.clock.advance(0.0123)
        candidate = self.pricing.read(record, SPOT.priority, SPOT.length)
        pending = Pending(candidate)
        if not hasattr(candidate.item, "price"):
            self.write(self.writer.refusal(candidate.item))
            return None
        request, price = candidate.item.request, candidate.item.price
        asked = admission.terms(
            request, price, self.clock.wall_s(), max_deferral_s=SETTINGS.streams.max_deferral_s,
            max_wait_s=SETTINGS.streams.max_wait_s[request.priority], is_back=pending.is_back,
        )  # fmt: skip
        ask = Ask(request.id, request.origin, request.reply.topic, request.tenant)
        return Case(pending, asked, ask, self.clock.wall_s())

    def judged(self, standing, **fields):
        case = self.case(**fields)
        case.judge(standing, CAPACITY, self.rules)
        return self.apply(case)

    def apply(self, case):
        self.clock.advance(0.004)
        self.write(self.writer.apply(case.pending.candidate.item, case.verdict, case.take_grounds()))
        return self.decisions[-1]

    def write(self, records):
        self.decisions += [codec.decode_decision(r.value) for r in records if r.topic == "decisions"]

    def replayed(self, books=BOOKS):
        replaying = Replaying(books, frozenset({SETTINGS.short_hash(), SCALER.short_hash()}))
        for offset, decision in enumerate(self.decisions):
            replaying.take(decision, Origin(topic="decisions", partition=1, offset=offset))
        readings = Readings(books, {"replies": 2})
        for record in self.landed:
            replaying.land(record, SPOT, readings)
        replaying.miss()
        return replaying.result()


def admitted(log):
    log.judged(Paid(Facts(Share())))


def placed_between_two(log):
    for name, load in (("gpu-a", 1000.1), ("gpu-b", 400.123456789), ("gpu-c", 700.0)):
        log.fleet.note(
            Telemetry(
                consumer=name,
                pool="default",
                state="ready",
                at_s=log.clock.wall_s(),
                queued_units=load,
                latency_ewma_s=load / 999,
                lanes={"lanes.default.medium.short": [0, 1]},
            )
        )
    for _ in range(6):
        assert "drawn" in log.judged(Paid(Facts(Share()))).inputs


def learned(log):
    request = log.case().pending.candidate.item.request
    told = Estimate(
        tenant="acme", model=request.model, template=request.template, at_s=log.clock.wall_s(), samples=50,
        output_tokens=33.0, service_s=1.1, prompt_ratio=1.3,
    )  # fmt: skip
    log.estimates.note(told)
    log.estimates.note(msgspec.structs.replace(told, tenant="", template="", coefficient=1.7))
    assert log.judged(Refused(Facts(BUSY, "pool", 7.7))).inputs["known_output_tokens"] == 33.0


def short_of_budget(log):
    for wait_s in (0.3, 12.5, 70.0):
        log.judged(Refused(Facts(BUSY, "tenant", wait_s)))
    log.judged(Refused(Facts(BUSY, "pool", never_cap_units=3.0)))


def crowded(log):
    log.judged(Refused(Facts(BUSY)))


def too_late(log):
    log.judged(Refused(Facts(BUSY)), headers=[("rampmeter_deadline_s", b"%f" % (WALL_S + 2))])


def overruled_by_the_ledger(log):
    assert log.judged(Paid(Facts(BUSY, "pool", 0.3))).inputs["overruled"] is True
    assert log.judged(Refused(Facts(Share()))).inputs["overruled"] is False


def no_room_in_memory(log):
    case = log.case()
    case.judge(Refused(Facts(BUSY, "pool", 0.3)), CAPACITY, log.rules)
    case.verdict = admission.decide_crammed(case.verdict, log.rules)
    case.grounds["crammed"] = True
    log.apply(case)


def waits_twice(log):
    case = log.case()
    for facts in (Facts(BUSY, "pool", 0.3), Facts(Share())):
        case.judge(Refused(facts) if facts.level else Paid(facts), CAPACITY, log.rules)
        log.apply(case)
    assert ["seen_s" in decision.inputs for decision in log.decisions] == [True, False]


def paused(log):
    case = log.case()
    case.verdict = admission.decide_paused(case.asked, log.rules)
    case.grounds = {"paused": "the tenant acme is paused", **evidence.of_terms(case.asked, log.rules)}
    log.apply(case)


def without_redis(log):
    fallback = Fallback(SETTINGS, log.clock, lambda: 0.25, LiveLimits(SETTINGS.streams))
    for _ in range(20):
        case = log.case(max_tokens=2000)
        case.verdict, looked_at = fallback.decide(case.pending.candidate.item, case.asked)
        case.grounds = {"degraded": True, **evidence.of_terms(case.asked, log.rules), **looked_at}
        log.apply(case)
    assert {decision.verdict for decision in log.decisions} == {"admit", "defer"}


def stopped_without_redis(log):
    for is_cancelled in (True, False):
        case = log.case()
        case.verdict = degrade.decide_stopped(log.rules.delays_s, is_cancelled=is_cancelled)
        case.grounds = {"degraded": True, **evidence.of_terms(case.asked, log.rules), "cancelled": is_cancelled}
        log.apply(case)


def cancelled(log):
    case = log.case()
    case.verdict = admission.CANCELLED
    log.apply(case)


def refused(log):
    log.case(b"no json")
    log.case(model="unheard-of")
    log.case(max_tokens=10**9)
    log.case(headers=[("rampmeter_reply_topic", b"replies.away")])
    log.case(headers=[("rampmeter_reply_topic", b"requests.high.short")])
    log.case(headers=[("rampmeter_id", b"r7"), ("rampmeter_deadline_s", b"%f" % (WALL_S - 1))])
    log.case(headers=[("rampmeter_deadline_s", b"%f" % (log.clock.wall_s() + 0.02))])
    assert len({decision.reason for decision in log.decisions}) == 7


def settled(log):
    for told in (usage(), usage(coefficient=1.7, attempt=2), usage(model="gone")):
        real_units = told.reserved_units if told.model == "gone" else 0.067 * 100 + 0.27 * 50
        real_units *= told.coefficient or 1.0
        log.write([log.writer.journal.settlement(told, real_units, Settled("settled", 1.0))])


def promoted(log):
    late = Late(31.5, 30.0, 77.7, 5.5, 9, None)
    inputs = {**msgspec.to_builtins(late), "lane": "low.short", "cost_units": 9.0}
    log.write(log.writer.promoted(work(), b"", Length.SHORT, inputs))


def scaled(log):
    load = Load(300, ((0.0, 7500.0, 0.0, 0.0),) * 4, 10.123, 1000.0 / 3)
    limits, now_s = SCALER.limits("default"), 1e6 / 7
    memory = replicas.decide(load, 1, Memory(), limits, now_s - 2.0).memory
    made = replicas.decide(load, 1, memory, limits, now_s)
    inputs = {**evidence_of_scale(load, memory, limits, now_s), **scaling.of_made(made)}
    log.decisions.append(
        Decision(
            id="default", stage="scale", verdict="up", reason="scale_up", at_s=WALL_S, by="autoscaler",
            settings_hash=SCALER.short_hash(), inputs={k: v for k, v in inputs.items() if v is not None},
        )
    )  # fmt: skip


def evidence_of_scale(load, memory, limits, now_s):
    return {"policy_version": scaling.POLICY_VERSION, **scaling.of(load, 1, memory, limits, now_s)}


STORIES = [
    admitted, placed_between_two, learned, short_of_budget, crowded, too_late, overruled_by_the_ledger,
    no_room_in_memory, waits_twice, paused, without_redis, stopped_without_redis, cancelled, refused, settled, promoted,
    scaled,
]  # fmt: skip


def told(story):
    log = Log()
    story(log)
    assert log.decisions
    return log


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_was_decided_is_decided_again(story):
    found = told(story).replayed()
    assert found.differences == []
    assert (found.differ, found.compared, found.records_gone, found.other_settings) == (0, found.decisions, 0, 0)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_an_entry_that_says_something_else_is_named_with_its_place(story):
    log = told(story)
    last, offset = log.decisions[-1], len(log.decisions) - 1
    changes = {"reason": "tampered"} if last.stage != "settlement" else {"inputs": {**last.inputs, "real_units": 1.5}}
    log.decisions[-1] = msgspec.structs.replace(last, **changes)
    (changed,) = log.replayed().differences
    assert (changed.id, changed.topic, changed.partition, changed.offset) == (last.id, "decisions", 1, offset)
    assert changed.fields


@pytest.mark.parametrize(
    ("story", "name", "value"),
    [
        (admitted, "priority", "high"),
        (admitted, "tenant", "other"),
        (waits_twice, "tenant", "other"),
        (admitted, "cost_units", 1.0),
        (admitted, "length", "long"),
        (admitted, "patience_s", 1.0),
        (admitted, "wait_estimate_s", 9.0),
        (admitted, "long_units", 1.0),
        (admitted, "level", None),
        (placed_between_two, "owner", 7),
        (learned, "known_output_tokens", 1.0),
        (short_of_budget, "never_cap_units", None),
        (without_redis, "parts", "0.0 1.0 1.0"),
        (refused, "detail", "because"),
        (settled, "output_tokens", 5),
        (promoted, "aged_wait_s", 99.9),
        (promoted, "threshold_s", 3.0),
        (scaled, "waiting_units", 1.0),
        (scaled, "wants", ""),
    ],
)
def test_a_changed_input_is_found(story, name, value):
    log = told(story)
    if story is without_redis:
        log.decisions = [decision for decision in log.decisions if decision.verdict == "admit"]
    if story is settled:
        log.decisions.pop()
    last = log.decisions[-1]
    inputs = {**last.inputs, name: value}
    log.decisions[-1] = msgspec.structs.replace(last, inputs={k: v for k, v in inputs.items() if v is not None})
    assert log.replayed().differ == 1


def test_orders_other_versions_and_what_carries_out_an_earlier_decision_are_counted_apart():
    log = told(admitted)
    (first,) = log.decisions
    log.decisions += [
        msgspec.structs.replace(first, stage="control"),
        msgspec.structs.replace(first, verdict="tampered", inputs={**first.inputs, "policy_version": "2"}),
        msgspec.structs.replace(first, verdict="tampered", inputs={}),
        msgspec.structs.replace(first, inputs={**first.inputs, "again": "reserved"}),
    ]
    found = log.replayed()
    assert (found.decisions, found.compared, found.differ) == (5, 1, 0)
    assert (found.recorded, found.other_versions) == (2, {"2": 1, "none": 1})


def test_decisions_under_other_settings_are_compared_in_what_follows_from_them_alone():
    log = told(short_of_budget)
    log.decisions = [msgspec.structs.replace(d, settings_hash="another") for d in log.decisions]
    log.decisions[0] = msgspec.structs.replace(
        log.decisions[0], inputs={**log.decisions[0].inputs, "cost_units": 1.0, "budget_wait_s": 12.5}
    )
    found = log.replayed()
    assert (found.other_settings, found.differ) == (4, 1)
    assert "cost_units" not in {each.field for each in found.differences[0].fields}


def test_a_decision_whose_record_is_gone_is_compared_without_it():
    log = told(admitted)
    log.landed.clear()
    found = log.replayed()
    assert (found.compared, found.records_gone, found.differ) == (1, 1, 0)


@pytest.mark.parametrize(
    ("story", "changes", "field"),
    [
        (admitted, ["streams.long_max_tokens=50"], "length"),
        (admitted, ["models.llama-3-8b.coefficient=1.0", "models.llama-3-8b.output_units_per_token=9"], "cost_units"),
        (short_of_budget, ["streams.fair.hold_s=0.1"], "verdict"),
        (short_of_budget, ["streams.max_deferral_s=1"], "verdict"),
        (short_of_budget, ["topics.defer_delays_s=[1,2]"], "delay_s"),
        (promoted, ["streams.aged_after_by_class.low=40"], "threshold_s"),
        (refused, ["models.unheard-of={}"], "stage"),
        (scaled, ["autoscaler.step_up_replicas=1"], "replicas"),
    ],
)
def test_other_settings_show_which_decisions_they_would_have_changed(story, changes, field):
    log, wanted = told(story), overrides.parsed(changes)
    if story is refused:
        log.decisions = [decision for decision in log.decisions if decision.reason == "unknown_model"]
    now = Books(overrides.changed(SETTINGS, wanted), overrides.changed(SCALER, wanted))
    found = log.replayed(now)
    assert field in {each.field for one in found.differences for each in one.fields}
    assert log.replayed(replace(now, streams=SETTINGS, autoscaler=SCALER)).differ == 0
