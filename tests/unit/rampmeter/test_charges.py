import msgspec
import pytest

from rampmeter import audit, charges
from rampmeter.accounts import Accounts, Spot
from rampmeter.charges import Fault, Window
from tests.support.builders import usage
from topics.outcomes import Outcome, Reason
from topics.records import Decision, Origin, Reply, Tokens
from topics.settings import DEFAULT_MODELS
from topics.timing import Timing

NOW_S, OLD_S, YOUNG_S = 10_000.0, 5_000.0, 9_990.0
PENDING_S = 60.0
TOKENS = Tokens(prompt=100, output=50)
UNITS = 0.067 * 100 + 0.27 * 50
FINISHED_S = 4_999.0
TOPICS = ("replies", "usage", "decisions")


class Log:
    """Hand-made topics; records lie behind each other on partition 2."""

    def __init__(self):
        self.accounts = Accounts(DEFAULT_MODELS)
        self.sent = set()
        self._ends = dict.fromkeys(TOPICS, 0)

    def _spot(self, topic, written_s):
        self._ends[topic] += 1
        return Spot(topic, 2, self._ends[topic] - 1, written_s)

    def reply(self, request_id="r1", *, landing=0, at_s=OLD_S, finished_s=FINISHED_S, is_sent=True, **fields):
        origin = Origin(topic="requests.medium.short", partition=0, offset=landing)
        defaults = {"outcome": Outcome.COMPLETED, "tokens": TOKENS, "cost_units": UNITS}
        timing = Timing(arrived_s=1.0, finished_s=finished_s)
        reply = Reply(id=request_id, origin=origin, timing=timing, **{**defaults, **fields})
        self.accounts.reply(reply, self._spot("replies", at_s))
        if is_sent:
            self.sent.add((origin.topic, origin.partition, origin.offset))
        return self

    def usage(self, request_id="r1", *, at_s=OLD_S, **fields):
        record = usage(**{"id": request_id, "tokens": TOKENS, "finished_s": FINISHED_S, **fields})
        self.accounts.usage(record, self._spot("usage", at_s))
        return self

    def partial(self, request_id="r1", *, output=5, **fields):
        tokens = Tokens(prompt=100, output=output)
        return self.usage(request_id, tokens=tokens, partial=True, outcome=Outcome.FAILED, **fields)

    def settled(self, request_id="r1", verdict="settled", *, at_s=OLD_S, units=None, **inputs):
        tokens = inputs.pop("tokens", TOKENS)
        units = round(0.067 * tokens.prompt + 0.27 * tokens.output, 3) if units is None else units
        partial = inputs.get("partial", False)
        refunded = {"repeat": 0.0, "partial": -units}.get(verdict, (0.0 if partial else 30.0) - units)
        known = {
            "attempt": 1, "partial": False, "reserved_units": 30.0, "real_units": units, "refunded_units": refunded,
            "prompt_tokens": tokens.prompt, "output_tokens": tokens.output, "cached_tokens": tokens.cached,
        }  # fmt: skip
        self._decide(request_id, "settlement", verdict, at_s, {**known, **inputs})
        return self

    def admitted(self, request_id="r1", **inputs):
        self._decide(request_id, "admission", "admit", OLD_S, {"cost_units": 30.0, **inputs})
        return self

    def shadowed(self, request_id="r1"):
        for stage, verdict in (("admission", "admit"), ("settlement", "settled")):
            self._decide(request_id, stage, verdict, OLD_S, {"cost_units": 99.0, "real_units": 99.0}, shadow="small")
        return self

    def _decide(self, request_id, stage, verdict, at_s, inputs, shadow=None):
        decision = Decision(
            id=request_id, stage=stage, verdict=verdict, reason="", at_s=at_s, by="streams-1", inputs=inputs,
            shadow=shadow,
        )  # fmt: skip
        self.accounts.decision(decision, self._spot("decisions", at_s))

    def judge(self, since_s=0.0):
        return charges.judge(self.accounts, Window(self.sent, since_s, NOW_S, PENDING_S, dedupe_window_s=600.0))

    def wrong(self):
        """Kinds, and where."""
        found = self.judge()
        assert sum(found.wrong.values()) == len(found.findings)
        return [(one.kind, f"{one.topic}[{one.partition}]@{one.offset}") for one in found.findings]


def run(log=None, request_id="r1", **reply):
    """A request that was admitted, ran, was answered and settled."""
    return (log or Log()).admitted(request_id).usage(request_id).reply(request_id, **reply).settled(request_id)


CLEAN = {
    "a run": run(),
    "one that a shadow decided too": run(Log().shadowed()).shadowed(),
    "one that only a shadow admitted": Log().shadowed().reply(tokens=None, outcome=Outcome.REJECTED_BUDGET),
    "a request that was rejected": Log().reply(tokens=None, cost_units=20.0, outcome=Outcome.REJECTED_BUDGET),
    "one that expired before it ran": Log()
    .usage(tokens=Tokens(prompt=0, output=0))
    .reply(tokens=Tokens(prompt=0, output=0), cost_units=0.0, outcome=Outcome.EXPIRED)
    .settled(tokens=Tokens(prompt=0, output=0)),
    "one that was cancelled in mid-run": Log()
    .usage(outcome=Outcome.CANCELLED)
    .reply(outcome=Outcome.CANCELLED, reason=Reason.CANCELLED)
    .settled(),
    "one that was tried twice": Log()
    .partial()
    .settled(verdict="partial", partial=True, tokens=Tokens(prompt=100, output=5))
    .usage(attempt=2)
    .reply(attempt=2)
    .settled(attempt=2),
    "a fenced attempt's part under the number of the one that answered": run()
    .partial(finished_s=FINISHED_S + 9)
    .settled(verdict="partial", partial=True, tokens=Tokens(prompt=100, output=5)),
    "two parts of one attempt, of which one is charged": run()
    .partial(output=5)
    .settled(verdict="partial", partial=True, tokens=Tokens(prompt=100, output=5))
    .partial(output=7, finished_s=FINISHED_S + 1)
    .settled(verdict="repeat", partial=True, tokens=Tokens(prompt=100, output=7)),
    "a usage told again by who took the id over": run()
    .usage(consumer="c2", engine_s=None, outcome=Outcome.FAILED)
    .settled(verdict="repeat", at_s=OLD_S + 1),
    "a settlement that is in the log only as a repeat": Log().usage().reply().settled(verdict="repeat"),
    "a settlement that was sent twice": run().settled(),
    "a charge without a reservation": Log().usage(reserved_units=0.0).reply().settled(
        verdict="unknown", reserved_units=0.0, refunded_units=-UNITS
    ),
    "a reservation that had lapsed": Log().admitted().usage().reply().settled(refunded_units=-UNITS),
    "one admitted again at another price": Log().admitted().admitted(cost_units=31.0, again="reserved").usage().reply()
    .settled(refunded_units=31.0 - UNITS),
    "one admitted without Redis that was reserved all the same": Log().admitted().usage(reserved_units=0.0).reply()
    .settled(reserved_units=0.0, refunded_units=30.0 - UNITS),
    "an answer that was too large to be written": Log().usage().reply(outcome=Outcome.FAILED).settled(),
    "a model that the settings do not know": Log().usage(model="gone").reply().settled(),
    "prices that were changed since": Log().usage().reply(cost_units=99.0).settled(units=99.0),
    "the same id again when it is forgotten": run().usage(finished_s=FINISHED_S + 700)
    .reply(landing=1, finished_s=FINISHED_S + 700).settled(at_s=OLD_S + 700),
    "an answer to a record before the window": Log().reply(is_sent=False),
}  # fmt: skip


@pytest.mark.parametrize("log", CLEAN.values(), ids=CLEAN)
def test_what_is_in_order_is_no_finding(log):
    found = log.judge()
    assert found.findings == []
    assert found.is_clean()
    assert found.pending == 0
    assert found.wrong == dict.fromkeys(map(str, Fault), 0)


WRONG = {
    "an answer without usage": (Log().reply().settled(), [(Fault.REPLY_WITHOUT_USAGE, "replies[2]@0"),
                                                         (Fault.CHARGE_MISMATCH, "decisions[2]@0")]),
    "usage without an answer": (Log().usage().settled(), [(Fault.USAGE_WITHOUT_REPLY, "usage[2]@0")]),
    "a second usage behind the answer's": (
        run().usage(tokens=Tokens(prompt=100, output=60)).settled(verdict="repeat", at_s=OLD_S + 1),
        [(Fault.DOUBLE_USAGE, "usage[2]@1")],
    ),
    "an attempt that nobody told of": (
        Log().usage(attempt=3).reply(attempt=3).settled(attempt=3).partial(attempt=1)
        .settled(verdict="partial", partial=True, tokens=Tokens(prompt=100, output=5)),
        [(Fault.ATTEMPT_GAP, "replies[2]@0")],
    ),
    "a reply that says another cost": (
        Log().usage().reply(cost_units=UNITS + 1).settled(), [(Fault.COST_MISMATCH, "replies[2]@0")],
    ),
    "a usage with other tokens than the reply": (
        Log().usage(tokens=Tokens(prompt=100, output=51)).reply().settled(tokens=Tokens(prompt=100, output=51)),
        [(Fault.COST_MISMATCH, "replies[2]@0")],
    ),
    "a settlement of other units": (
        Log().usage().reply().settled(units=UNITS + 1), [(Fault.CHARGE_MISMATCH, "decisions[2]@0")],
    ),
    "a settlement of other tokens": (
        Log().usage().reply().settled(tokens=Tokens(prompt=100, output=51)),
        [(Fault.CHARGE_MISMATCH, "decisions[2]@0")],
    ),
    "a settlement of what nobody used": (Log().settled(), [(Fault.CHARGE_MISMATCH, "decisions[2]@0")]),
    "a refund that is too small": (
        Log().admitted().usage().reply().settled(refunded_units=1.0), [(Fault.CHARGE_MISMATCH, "decisions[2]@1")],
    ),
    "an id that was settled twice": (
        run().settled(verdict="unknown", at_s=OLD_S + 1), [(Fault.DOUBLE_SETTLEMENT, "decisions[2]@2")],
    ),
    "an attempt that was charged twice": (
        run().partial().settled(verdict="partial", partial=True, tokens=Tokens(prompt=100, output=5))
        .settled(verdict="unknown", partial=True, tokens=Tokens(prompt=100, output=5), refunded_units=-8.05,
                 at_s=OLD_S + 1),
        [(Fault.DOUBLE_SETTLEMENT, "decisions[2]@3")],
    ),
    "an id that was never settled": (Log().admitted().usage().reply(), [(Fault.UNSETTLED, "usage[2]@0")]),
    "an id that was run for two records": (
        run().usage(finished_s=FINISHED_S + 9).reply(landing=1, finished_s=FINISHED_S + 9),
        [(Fault.DOUBLE_OUTCOME, "replies[2]@1")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("log", "wanted"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_found_at_its_place(log, wanted):
    assert log.wrong() == wanted
    assert not log.judge().is_clean()


@pytest.mark.parametrize(
    "log",
    [Log().usage(at_s=YOUNG_S), Log().reply(at_s=YOUNG_S), Log().usage(at_s=YOUNG_S).reply(at_s=YOUNG_S)],
    ids=["usage", "reply", "unsettled"],
)
def test_what_may_still_come_is_pending(log):
    found = log.judge()
    assert found.is_clean()
    assert found.pending == 1


def test_a_run_that_died_before_its_reply_is_a_rerun_and_no_double():
    cut_off = Log().usage(consumer="c1", finished_s=FINISHED_S - 8).settled()
    found = cut_off.usage().reply().settled(verdict="repeat", at_s=OLD_S + 1).judge()
    assert found.is_clean()
    assert (found.reruns, found.usages, found.answers) == (1, 2, 1)


def test_two_answers_to_one_record_leave_one_usage_that_counts():
    log = run().usage(finished_s=FINISHED_S + 1).reply(finished_s=FINISHED_S + 1).settled(verdict="repeat")
    assert log.wrong() == [(Fault.DOUBLE_USAGE, "usage[2]@1")]


def test_what_is_priced_otherwise_now_is_counted_and_not_blamed():
    assert CLEAN["prices that were changed since"].judge().other_prices == 1
    assert CLEAN["a model that the settings do not know"].judge().other_prices == 1


def test_a_dead_letter_accounts_for_an_answer_that_could_be_written_nowhere():
    log = Log().usage().settled()
    log.accounts.dead_letter("r1")
    log.accounts.dead_letter(None)
    assert log.judge().is_clean()


def test_ids_whose_beginning_may_lie_before_the_window_are_not_judged():
    log = Log().usage(at_s=OLD_S).settled(at_s=OLD_S)
    assert log.judge(since_s=OLD_S - PENDING_S + 1).is_clean()
    assert not log.judge(since_s=OLD_S - PENDING_S).is_clean()


def test_an_attempt_number_beyond_reason_takes_no_time():
    assert [kind for kind, _ in run(attempt=2**31 - 1).wrong()] == [Fault.REPLY_WITHOUT_USAGE, Fault.ATTEMPT_GAP]


def test_a_decision_of_another_shape_is_passed_over():
    log = run()
    log._decide("r1", "settlement", "settled", OLD_S + 1, {"real_units": "many", "attempt": None})
    log._decide("r1", "control", "cancel", OLD_S, {})
    assert [kind for kind, _ in log.wrong()] == [Fault.DOUBLE_SETTLEMENT]


def test_findings_are_bounded_and_their_count_is_not(monkeypatch):
    monkeypatch.setattr(charges, "KEPT", 3)
    log = Log()
    for number in range(5):
        log.reply(f"r{number}", landing=number)
    found = log.judge()
    assert found.wrong[Fault.REPLY_WITHOUT_USAGE] == 5
    assert [one.id for one in found.findings] == ["r0", "r1", "r2"]


def test_names_for_machines_are_stable():
    found = msgspec.to_builtins(Log().reply().judge())
    assert found["findings"] == [
        {"kind": "reply_without_usage", "id": "r1", "topic": "replies", "partition": 2, "offset": 0,
         "detail": "attempt 1"},
    ]  # fmt: skip
    assert list(found) == [
        "answers", "usages", "settlements", "pending", "repeats", "reruns", "other_prices", "wrong", "findings",
    ]  # fmt: skip
    assert list(found["wrong"]) == [
        "reply_without_usage", "usage_without_reply", "double_outcome", "double_usage", "attempt_gap", "cost_mismatch",
        "charge_mismatch", "double_settlement", "unsettled",
    ]  # fmt: skip


def test_every_finding_says_what_to_do():
    assert set(audit.ADVICE) == set(Fault)
