"""Each numbered behaviour of a GPU consumer that can lose, double, delay or starve work has a test by its number.

`@pytest.mark.behaviour(7)` on a test says which one it shows.  The other numbers of the list from which these are
taken, 23 to 29, concern the autoscaler (23 to 25) and the streams workers (26 to 29): nothing of them is in a consumer.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BEHAVIOURS = {
    1: "a slow head is run again after a kill, since nothing beyond it was committed",
    2: "the same in a new group, and with 0 committed",
    3: "of several heads the lowest is committed",
    4: "what is finished beyond the head is not run again; a nearly full map stops the fetch and lets it go on",
    5: "foreign or damaged metadata is ignored with a warning",
    6: "gaps of transactions and compaction stop no commit, and leave no backlog",
    7: "a consumer that joins doubles nothing; who loses a partition commits nothing for it any more",
    8: "a partition that comes back while its old job runs: the old completion commits nothing",
    9: "work longer than max.poll.interval.ms costs no membership",
    10: "one that was frozen past its session commits nothing and answers nothing twice",
    11: "SIGTERM drains what runs, commits, leaves, ends with 0; the rest is redelivered",
    12: "an outage of the coordinator: what is in flight stays bounded, commits go on after it",
    13: "many joins and leaves: nothing lost, no partition stands still",
    14: "a partition that comes while all are paused is bounded too, and none stays paused",
    15: "a flood of high leaves low its share, and its age bounded",
    16: "without high, low has all of the capacity within a second",
    17: "a backlog on one topic does not change the wait on another",
    18: "poison goes to the dead letters with its place, its neighbours are answered",
    19: "while the dead letters cannot be written nothing is committed, and after it nothing is lost",
    20: "a reply that cannot lie where it should is recorded, and its partition flows on",
    21: "the correlation id comes back byte for byte, on the partition that was asked for",
    22: "reply and offset in one transaction",
    30: "of two with one group.instance.id the new one ends and says why",
}
TO_COME: dict[int, str] = {}
WITHOUT_A_BROKER = {15, 16}
"""Shares over minutes are shown in simulated time."""


def _marked(path):
    """Numbers on the tests of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.behaviour":
                    yield from (number.value for number in mark.args)


MARKED = {
    folder: {number for path in (ROOT / folder).rglob("test_*.py") for number in _marked(path)}
    for folder in ("unit", "integration", "acceptance")
}


@pytest.mark.parametrize("number", sorted(BEHAVIOURS.keys() - TO_COME.keys()))
def test_each_behaviour_has_a_test_and_nearly_each_one_on_real_parts(number):
    on_real_parts = MARKED["integration"] | MARKED["acceptance"]
    found = on_real_parts | MARKED["unit"] if number in WITHOUT_A_BROKER else on_real_parts
    assert number in found, f"no test shows that {BEHAVIOURS[number]}"


def test_a_number_stands_for_a_behaviour_and_what_is_shown_is_no_longer_to_come():
    shown = set().union(*MARKED.values())
    assert shown <= BEHAVIOURS.keys()
    assert not shown & TO_COME.keys()
