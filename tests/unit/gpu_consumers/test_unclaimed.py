import pytest

from gpu_consumers import unclaimed
from gpu_consumers.claims import ClaimsUnavailable, Place
from gpu_consumers.settings import GpuSettings
from gpu_consumers.unclaimed import Unclaimed

PLACE = Place("replies", 0, 1)


class FakeClaims:
    def __init__(self):
        self.told, self.lapsed, self.calls_left = [], [], 99

    def let_lapse(self, ids):
        self.lapsed += ids

    async def done(self, answered):
        if not self.calls_left:
            raise ClaimsUnavailable("away")
        self.calls_left -= 1
        self.told.append([request_id for request_id, _ in answered])


@pytest.fixture
def claims():
    return FakeClaims()


@pytest.fixture
def owed(claims):
    return Unclaimed(GpuSettings(), claims)


@pytest.mark.asyncio
async def test_redis_is_told_of_answers_and_not_of_ends_without_one_and_neither_is_renewed(owed, claims):
    assert owed.owe([("a", PLACE), ("retried", None)])
    assert claims.lapsed == ["a", "retried"]
    await owed.pay()
    await owed.pay()
    assert claims.told == [["a"]]


@pytest.mark.asyncio
async def test_what_could_not_be_told_is_told_the_next_time(owed, claims, monkeypatch):
    monkeypatch.setattr(unclaimed, "_PORTION", 2)
    owed.owe([(request_id, PLACE) for request_id in "abcde"])
    claims.calls_left = 1
    with pytest.raises(ClaimsUnavailable):
        await owed.pay()
    claims.calls_left = 9
    await owed.pay()
    assert claims.told == [["a", "b"], ["c", "d"], ["e"]]


def test_what_is_owed_is_bounded(owed, claims, monkeypatch):
    monkeypatch.setattr(unclaimed, "_OWED", 1)
    assert owed.owe([("a", PLACE)])
    assert not owed.owe([("b", PLACE)])
    assert claims.lapsed == ["a"], "what is not owed is still held"
