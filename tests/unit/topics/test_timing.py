import pytest

from topics.timing import Timing, Waits, waits

AT_S = 1_700_000_000.0


def moments(**after_s):
    return Timing(**{name: AT_S + value for name, value in {"arrived_s": 0.0, **after_s}.items()})


def as_told(found):
    return {name: getattr(found, name) for name in Waits.__struct_fields__ if getattr(found, name) is not None}


@pytest.mark.parametrize(
    ("timing", "told"),
    [
        (
            moments(admitted_s=1, lane_s=1, started_s=3, first_token_s=3.5, finished_s=7),
            {"queued_s": 1, "admitted_s": 0, "lane_s": 2, "engine_s": 4, "first_token_s": 0.5},
        ),
        (  # promoted, or of a later attempt
            moments(admitted_s=1, lane_s=31, started_s=33, finished_s=34),
            {"queued_s": 1, "admitted_s": 30, "lane_s": 2, "engine_s": 1},
        ),
        (moments(finished_s=5), {"queued_s": 5}),
        (moments(admitted_s=1, finished_s=5), {"queued_s": 1, "admitted_s": 4}),
        (moments(admitted_s=1, lane_s=2, finished_s=5), {"queued_s": 1, "admitted_s": 1, "lane_s": 3}),
        (moments(lane_s=2, started_s=4, finished_s=5), {"queued_s": 2, "lane_s": 2, "engine_s": 1}),
        (moments(admitted_s=-0.1, lane_s=0.2, finished_s=1), {"queued_s": 0, "admitted_s": 0.3, "lane_s": 0.8}),
        (moments(), {}),
    ],
    ids=["all", "promoted", "refused", "never on a lane", "expired", "admission unknown", "clocks disagree", "no end"],
)
def test_waits_lie_between_the_moments_that_were_reached(timing, told):
    assert as_told(waits(timing)) == pytest.approx(told)
