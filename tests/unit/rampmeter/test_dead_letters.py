import pytest

from rampmeter.dead_letters import Filter
from topics.outcomes import Reason
from topics.records import DeadLetter

LETTER = DeadLetter(
    topic="requests.low.short", partition=0, offset=1, reason=Reason.UNDECODABLE, detail="", sha256="", size_bytes=0,
    at_s=100.0, by="streams",
)  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (Filter(0.0, 200.0), True),
        (Filter(101.0, 200.0), False),
        (Filter(0.0, 99.0), False),
        (Filter(0.0, 200.0, (Reason.EMPTY_VALUE, Reason.UNDECODABLE)), True),
        (Filter(0.0, 200.0, (Reason.EMPTY_VALUE,)), False),
        (Filter(0.0, 200.0, (), ("lanes", "low.short")), True),
        (Filter(0.0, 200.0, (), ("lanes",)), False),
        (Filter(0.0, 200.0, (Reason.UNDECODABLE,), ("lanes",)), False),
    ],
)
def test_a_letter_passes_when_every_filter_takes_it(wanted, taken):
    assert wanted.takes(LETTER) is taken
