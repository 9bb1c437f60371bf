"""Where answers go, what they tell, how a reader goes on in them."""

import base64

from rampmeter import client, streaming
from rampmeter.client import Client
from rampmeter.streaming import Cursor, Pieces
from tests.support.gpu import text_of
from topics.clock import SystemClock
from topics.outcomes import Outcome
from topics.records import Chunk, ReplyAddress


def waits_of(reply):
    waits = reply.waits
    return [waits.queued_s, waits.admitted_s, waits.lane_s, waits.engine_s]


def test_an_answer_tells_where_its_time_went(rig):
    rig.start(engine="simulated", window_requests=1).wait_ready()
    rig.put(rig.work("first", output_tokens=100))
    rig.put(rig.work("second", output_tokens=20), rig.work("late", deadline_s=SystemClock().wall_s() + 0.3))
    replies = rig.wait_replies(3)
    for reply in replies.values():
        whole_s = reply.timing.finished_s - reply.timing.arrived_s
        assert abs(sum(part or 0 for part in waits_of(reply)) - whole_s) < 0.05
    first, second, late = replies["first"].waits, replies["second"].waits, replies["late"].waits
    assert first.lane_s < second.lane_s
    assert 0 < first.first_token_s < first.engine_s
    assert replies["late"].outcome is Outcome.EXPIRED
    assert late.lane_s > 0.2
    assert (late.engine_s, late.first_token_s) == (None, None)


def test_a_reader_that_left_in_mid_stream_goes_on_where_it_stood(rig):
    correlation = base64.b64encode(b"\x00\xff").decode()
    address = ReplyAddress(topic=rig.settings.topic("replies"), correlation_b64=correlation)
    begin = Cursor("r1", correlation, address.topic, {0: 0, 1: 0}, Pieces())
    rig.put(rig.work("r1", stream=True, output_tokens=60, reply=address), rig.work("other", stream=True))
    rig.start(engine="simulated", speed=10)
    with Client(rig.settings, SystemClock()) as reader:
        answers = reader.resume(begin, 30)
        seen = [next(answers) for _ in range(3)]
        kept = reader.cursor
    with Client(rig.settings, SystemClock()) as reader:
        seen += reader.resume(kept, 30)
        pieces = reader.cursor.pieces
    *chunks, reply = seen
    assert [chunk.seq for chunk in chunks] == list(range(reply.chunks))
    assert "".join(map(client.text_of, chunks)) == text_of(reply)
    assert pieces.lacks(reply) == 0


def test_pieces_that_the_broker_did_not_take_show_as_a_gap_and_the_answer_has_the_whole_text(rig):
    rig.put(rig.work("r1", stream=True, output_tokens=60, reply=ReplyAddress(topic=rig.settings.topic("replies.gone"))))
    rig.start(engine="simulated", speed=10)
    reply = rig.wait_replies(1)["r1"]
    pieces = Pieces()
    for answer in rig.answers():
        if isinstance(answer, Chunk):
            pieces = streaming.take(pieces, answer).pieces
    assert pieces.lacks(reply) == reply.chunks > 0
    assert len(text_of(reply)) > 0
