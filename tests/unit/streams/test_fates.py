import msgspec
import pytest

from streams.journal import Journal
from streams.ledger_wire import Settled
from streams.policy import admission, fates
from streams.policy.fates import Refused, Used
from streams.policy.sharing import Capacity
from streams.settings import Streams, StreamsSettings
from tests.support.builders import usage, work
from tests.support.clock import FakeClock
from topics import codec
from topics.records import Decision, Tokens
from topics.settings import Model


def journal(shadow=None):
    return Journal(StreamsSettings(streams=Streams(shadow=shadow)), FakeClock(), "streams-1")


def told(entry):
    return fates.told(codec.decode_decision(entry.value))


def settled(result="settled", **fields):
    return journal().settlement(usage(**fields), 1.0, Settled(result, 2.0))


FULL = Tokens(prompt=100, output=50, cached=20)
TOLD = {
    "a rejection": (journal().admission(work(), admission.CANCELLED, {}), Refused()),
    "an admission, whose end is not known yet": (journal().admission(work(), admission.Admit(), {}), None),
    "a wait": (journal().admission(work(), admission.Hold(1.0, "fair_share"), {}), None),
    "a promotion": (journal().promotion(work(), {}), None),
    "an end": (settled(tokens=FULL, service_s=1.5, attempt=2), Used(FULL, attempt=2, service_s=1.5)),
    "a part": (settled("partial", partial=True), Used(Tokens(prompt=100, output=50), partial=True)),
    "a part that the ledger did not know": (
        settled("unknown", partial=True), Used(Tokens(prompt=100, output=50), partial=True)
    ),
    "a charge that was told before": (settled("repeat"), None),
    "another shadow's rejection": (journal("other").admission(work(), admission.CANCELLED, {}), None),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_what_a_decision_tells_of_the_end_of_its_request(case):
    entry, fate = TOLD[case]
    assert told(entry) == fate


@pytest.mark.parametrize("inputs", [{}, {"prompt_tokens": -1, "output_tokens": 1}, {"prompt_tokens": "x"}])
def test_a_foreign_settlement_is_none_of_ours(inputs):
    made = Decision(id="r1", stage="settlement", verdict="settled", reason="", at_s=0, by="x", inputs=inputs)
    with pytest.raises(msgspec.ValidationError):
        fates.told(made)


def test_what_was_used_costs_what_the_shadow_would_have_asked_for_it():
    model = Model(input_units_per_token=1.0, output_units_per_token=10.0, cached_units_per_token=0.0)
    made = work(price_fields={"coefficient": 2.0})
    assert Used(FULL).units(made, {"llama-3-8b": model}) == 2.0 * (80 + 500)


@pytest.mark.parametrize(
    ("service_s", "wait_s", "capacity", "lasts_s"),
    [
        (2.0, 3.0, Capacity(), 5.0),
        (2.0, None, Capacity(100.0, 400.0), 2.0),
        (None, 1.0, Capacity(100.0, 400.0), 5.0),
        (None, 1.0, Capacity(100.0, None), 1.0),
        (None, None, Capacity(), 0.0),
    ],
)
def test_what_was_refused_where_it_is_served_is_open_for_as_long_as_was_predicted(service_s, wait_s, capacity, lasts_s):
    made = work(price_fields={"service_s": service_s}, wait_estimate_s=wait_s)
    assert fates.lasts_s(made, capacity) == lasts_s
