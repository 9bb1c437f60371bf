import msgspec
import pytest

from rampmeter import streaming
from rampmeter.streaming import Cursor, Pieces
from topics.outcomes import Outcome
from topics.records import Chunk, Reply


def chunk(seq, attempt=1, consumer="a"):
    return Chunk(id="x", seq=seq, data=msgspec.Raw(b"{}"), attempt=attempt, consumer=consumer)


def taken(*chunks):
    """The pieces after these, and the numbers of those with which the answer began again."""
    pieces, again = Pieces(), []
    for at, one in enumerate(chunks):
        took = streaming.take(pieces, one)
        pieces = took.pieces
        if took.begins_again:
            again.append(at)
    return pieces, again


@pytest.mark.parametrize(
    ("chunks", "lacks", "again"),
    [
        ([chunk(0), chunk(1), chunk(2)], 0, []),
        ([chunk(0), chunk(2)], 1, []),
        ([chunk(1), chunk(2)], 1, []),
        ([chunk(0)], 2, []),
        ([], 3, []),
        ([chunk(0, consumer="b"), chunk(1, consumer="b"), chunk(0), chunk(1), chunk(2)], 0, [2]),
        ([chunk(0, attempt=0), chunk(0), chunk(1), chunk(2)], 0, [1]),
        ([chunk(0), chunk(1), chunk(2), chunk(0), chunk(1), chunk(2)], 0, [3]),
        ([chunk(0), chunk(1), chunk(2), chunk(1), chunk(2)], 1, [3]),
        ([chunk(0, consumer="b"), chunk(1, consumer="b")], 3, []),
    ],
    ids=[
        "whole",
        "a hole",
        "no head",
        "no tail",
        "nothing",
        "another consumer",
        "another attempt",
        "the same run again",
        "the same run again without its head",
        "not of this answer",
    ],
)
def test_what_never_came_is_counted_and_a_new_beginning_is_seen(chunks, lacks, again):
    pieces, began = taken(*chunks)
    reply = Reply(id="x", outcome=Outcome.COMPLETED, attempt=1, consumer="a", chunks=3)
    assert (pieces.lacks(reply), began) == (lacks, again)


def test_an_answer_without_pieces_lacks_none():
    assert Pieces().lacks(Reply(id="x", outcome=Outcome.COMPLETED)) == 0


def test_a_cursor_outlives_its_process():
    cursor = Cursor("x", "AP8=", "p.replies", {0: 5, 3: 9}, Pieces(1, "a", 4, 1))
    assert msgspec.json.decode(msgspec.json.encode(cursor), type=Cursor) == cursor
