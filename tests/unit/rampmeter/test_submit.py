import msgspec
import pytest

from rampmeter import submit
from rampmeter.client import Ask
from rampmeter.output import Output
from tests.support.clock import FakeClock
from topics.outcomes import Outcome, Reason
from topics.records import Chunk, Reply
from topics.settings import Settings
from topics.timing import Waits

BODY = msgspec.Raw(b'{"choices":[{"message":{"content":"abc"}}]}')
DONE = Reply(id="x", outcome=Outcome.COMPLETED, consumer="a", chunks=3, body=BODY)


def piece(seq, text, consumer="a"):
    return Chunk(
        id="x", seq=seq, data=msgspec.Raw(b'{"choices":[{"delta":{"content":"%s"}}]}' % text), consumer=consumer
    )


@pytest.fixture
def submitted(monkeypatch, capsys):
    """Status, stdout and stderr of a submit that gets these answers."""

    def run(*answers):
        class Client:
            def __init__(self, *_):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def stream(self, _ask, _timeout_s):
                return iter(answers)

        monkeypatch.setattr(submit, "Client", Client)
        monkeypatch.setattr(submit.clients, "require_kafka", lambda _: None)
        ask, clock = Ask([], stream=True), FakeClock()
        status = submit.run(Settings(), ask, submit.Route(None, 1.0), clock, Output(clock))
        return status, *capsys.readouterr()

    return run


def test_a_whole_stream_is_shown_once(submitted):
    assert submitted(piece(0, b"a"), piece(1, b"b"), piece(2, b"c"), DONE) == (0, "abc\n", "id x\n")


def test_what_a_torn_stream_lacks_is_in_the_answer_which_is_shown_again(submitted):
    status, out, err = submitted(piece(0, b"a"), piece(2, b"c"), DONE)
    assert (status, out) == (0, "ac\nabc\n")
    assert "1 pieces of the stream never came" in err


def test_an_answer_that_begins_again_is_shown_from_there(submitted):
    _, out, err = submitted(piece(0, b"a", "b"), piece(0, b"a"), piece(1, b"b"), piece(2, b"c"), DONE)
    assert out == "a\nabc\n"
    assert "begins again" in err


def test_a_copy_of_an_earlier_answer_has_no_pieces_and_is_shown_whole(submitted):
    assert submitted(msgspec.structs.replace(DONE, repeat=True)) == (0, "abc\n", "id x\n")


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        (
            Waits(queued_s=0.25, admitted_s=0.0, lane_s=1.5, engine_s=2.0, first_token_s=0.5),
            "queued 0.25 s, to its lane 0.00 s, on it 1.50 s, in the engine 2.00 s (first token after 0.50 s)",
        ),
        (Waits(queued_s=3.0), "queued 3.00 s"),
    ],
)
def test_the_id_and_where_the_time_went_are_told_whatever_the_outcome(submitted, waits, told):
    assert submitted(msgspec.structs.replace(DONE, waits=waits))[2] == f"id x: {told}\n"
    late = Reply(id="x", outcome=Outcome.EXPIRED, reason=Reason.DEADLINE_PASSED, waits=waits)
    status, out, err = submitted(late)
    assert (status, out, err) == (1, "", f"expired (deadline_passed): no detail\nid x: {told}\n")
