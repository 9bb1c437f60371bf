import msgspec

from gpu_consumers.answering import Writer
from tests.support.builders import WALL_S, work
from topics import codec
from topics.settings import Settings


def test_a_retry_is_the_same_work_but_for_its_attempt():
    before = work({"deadline_s": WALL_S + 60, "arrived_s": WALL_S - 5}, attempt=2, deferrals=1, admitted_s=WALL_S)
    letter = Writer(Settings(), "gpu-1").retry_letter(before)
    assert codec.decode_work(letter.value) == msgspec.structs.replace(before, attempt=3)
