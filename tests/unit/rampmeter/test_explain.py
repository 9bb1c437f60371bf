"""Timelines from records, whatever order they are met in."""

import itertools
import random

import msgspec
import pytest

from rampmeter.explain import show
from rampmeter.explain.companions import Engines, Run
from rampmeter.explain.events import Step
from rampmeter.explain.stories import Landing, Stories
from tests.support import builders
from topics.outcomes import Outcome, Reason
from topics.records import DeadLetter, Decision, Reply, Tokens
from topics.settings import DEFAULT_MODELS
from topics.timing import Timing

CANARY = "sentinel-prompt-text"
USED = Tokens(prompt=100, output=50)


def decision(stage, verdict, at_s, reason="none", about="r1", **inputs):
    return Decision(id=about, stage=stage, verdict=verdict, reason=reason, at_s=at_s, by="w1", inputs=inputs)


def usage(name="r1", finished_s=20.0, service_s=4.0, **fields):
    return builders.usage(id=name, finished_s=finished_s, service_s=service_s, **{"consumer": "g1", **fields})


def journey():
    """Everything that can befall one request, as (moment, how it is told)."""
    ask = builders.work()
    origin = ask.request.origin
    where = (origin.topic, origin.partition, origin.offset)
    again = msgspec.structs.replace(ask, attempt=2)
    letter = DeadLetter(
        topic="replies", partition=0, offset=-1, reason=Reason.REPLY_TOPIC_MISSING, detail="d", sha256="", size_bytes=1,
        at_s=51.0, by="w1", id="r1",
    )  # fmt: skip
    price = {
        "long_units": 300.0, "cost_units": 20.2, "coefficient": 1.0, "prompt_tokens": 100,
        "expected_output_tokens": 50, "model": "llama-3-8b", "priority": "medium", "length": "short",
    }  # fmt: skip
    deferral = decision("admission", "defer", 2.5, "budget_tenant", now_s=2.0, delay_s=5, **price)
    reply = Reply(
        id="r1", outcome=Outcome.COMPLETED, tokens=USED, origin=origin, attempt=2, consumer="g2", cost_units=20.2,
        body=msgspec.Raw(f'"{CANARY}"'.encode()), timing=Timing(arrived_s=1.0, first_token_s=31.0),
    )  # fmt: skip
    spoken = msgspec.structs.replace(reply, repeat=True)
    return [
        lambda s: s.land(where, Landing(1.0, 77, ("r1", "t-0-0"))),
        lambda s: s.decision(deferral, "d@1"),
        lambda s: s.work(ask, "deferred", "deferred.5s", "deferred.5s[0]@1", 2.5),
        lambda s: s.decision(decision("admission", "admit", 8.5, now_s=8.0, cost_units=20.2), "d@2"),
        lambda s: s.work(ask, "lanes", "lanes.default.medium.short", "lanes.default.medium.short[0]@1", 9.0),
        lambda s: s.decision(decision("promotion", "promote", 10.0, "waited", age_s=9.0, threshold_s=5.0), "d@3"),
        lambda s: s.work(ask, "lanes", "lanes.default.aged.short", "lanes.default.aged.short[1]@1", 10.0),
        lambda s: s.usage(usage(finished_s=20.0, partial=True), "u@1"),
        lambda s: s.work(again, "retries", "retries.1s", "retries.1s[0]@1", 20.5),
        lambda s: s.work(again, "lanes", "lanes.default.medium.short", "lanes.default.medium.short[1]@7", 22.0),
        lambda s: s.usage(usage(attempt=2, consumer="g2", finished_s=35.0, service_s=5.0), "u@2"),
        lambda s: s.usage(usage("other", consumer="g2", finished_s=33.0, service_s=1.0), "u@3"),
        lambda s: s.reply(reply, "replies[0]@4", 36.0),
        lambda s: s.decision(decision("settlement", "settled", 37.0, attempt=2, real_units=20.2), "d@4"),
        lambda s: s.reply(spoken, "replies[0]@9", 50.0),
        lambda s: s.letter(letter, 3, "dead_letters[0]@3"),
    ]  # fmt: skip


IN_ORDER = [
    "received", "priced", "deferred", "deferred", "admitted", "placed", "promoted", "placed", "started", "failed",
    "retried", "placed", "started", "first_token", "ended", "answered", "settled", "repeated", "dead_lettered",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_a_journey_is_told_in_order_however_its_records_are_met(seed):
    records = journey()
    random.Random(seed).shuffle(records)
    stories = Stories(DEFAULT_MODELS)
    for tell in itertools.chain(records, records):  # twice: what is told again changes nothing
        tell(stories)
    told = stories.timeline("r1")
    assert [event.step.value for event in told.events] == IN_ORDER
    assert (told.state, told.attempts, told.missing) == ("completed", 2, [])
    assert [(one.id, one.together_s) for one in told.batched_with] == [("other", 1.0)]
    assert (told.price.input_units, told.price.output_units) == (6.7, 13.5)
    assert sum(event.after_s or 0 for event in told.events) == pytest.approx(50.0)
    assert CANARY not in show.text(told) + msgspec.json.encode(told).decode()
    assert stories.timeline("t-0-1") is None


def test_each_missing_piece_is_named():
    whole = journey()
    for number, said in ((0, "the record that asked"), (10, "usage"), (13, "settlement")):
        stories = Stories(DEFAULT_MODELS)
        for tell in (*whole[:number], *whole[number + 1 :]):
            tell(stories)
        (missing,) = stories.timeline("r1").missing
        assert said in missing


def test_of_a_record_that_nothing_came_of_only_its_landing_is_told():
    stories = Stories(DEFAULT_MODELS)
    stories.land(("t", 0, 5), Landing(1.0, 9, ("mine", "t-0-5")))
    assert stories.ids() == ["mine"]
    assert (stories.timeline("mine").state, [event.step for event in stories.timeline("mine").events]) == (
        "open",
        [Step.RECEIVED],
    )
    assert "goes by mine" in stories.timeline("t-0-5").missing[0]


def test_decisions_that_befell_nobody_are_left_out():
    stories = Stories(DEFAULT_MODELS)
    made = decision("admission", "admit", 1.0)
    stories.decision(msgspec.structs.replace(made, shadow="small"), "d@1")
    stories.decision(decision("scale", "scale", 1.0, about="default"), "d@2")
    stories.decision(decision("control", "pause", 1.0, "tenant", about="o1", name="acme"), "d@3")
    assert stories.ids() == []


def test_the_words_of_an_engine_are_not_told():
    stories = Stories(DEFAULT_MODELS)
    failed = Reply(id="r1", outcome=Outcome.FAILED, reason=Reason.ENGINE_ERROR, detail=CANARY, tokens=USED)
    stories.reply(failed, "replies[0]@1", 1.0)
    assert CANARY not in show.text(stories.timeline("r1"))


def test_companions_are_those_whose_runs_overlap_on_the_same_consumer():
    engines = Engines()
    mine = Run("me", "g1", 10.0, 20.0)
    runs = [
        mine, Run("before", "g1", 0.0, 10.0), Run("all-along", "g1", 0.0, 99.0), Run("within", "g1", 12.0, 13.0),
        Run("elsewhere", "g2", 12.0, 13.0), Run("after", "g1", 20.0, 21.0), Run("within", "g1", 15.0, 17.0),
    ]  # fmt: skip
    for run in (*runs, *runs):
        engines.note(run)
    assert [(one.id, one.together_s) for one in engines.beside(mine)] == [("all-along", 10.0), ("within", 3.0)]
