from itertools import product

import pytest

from gpu_consumers.policy.fallback import AS_ASKED, Place, Route, after
from topics.outcomes import Reason

LARGE, NO_PARTITION = Reason.REPLY_TOO_LARGE, Reason.REPLY_PARTITION_MISSING
MISSING, FORBIDDEN = Reason.REPLY_TOPIC_MISSING, Reason.REPLY_TOPIC_FORBIDDEN


def route(place, *, alone=False, short=False):
    return Route(place, is_alone=alone, is_short=short)


@pytest.mark.parametrize(
    ("refusals", "ends"),
    [
        ([LARGE], route(Place.ASKED, alone=True)),
        ([LARGE, LARGE], route(Place.ASKED, alone=True, short=True)),
        ([LARGE, LARGE, LARGE], route(Place.DEFAULT, alone=True, short=True)),
        ([NO_PARTITION], route(Place.ANY_PARTITION)),
        ([NO_PARTITION, LARGE], route(Place.ANY_PARTITION, alone=True)),
        ([NO_PARTITION, FORBIDDEN], route(Place.DEFAULT)),
        ([MISSING], route(Place.DEFAULT)),
        ([FORBIDDEN], route(Place.DEFAULT)),
        ([MISSING, MISSING], route(Place.NOWHERE)),
        ([MISSING, NO_PARTITION], route(Place.NOWHERE)),
    ],
)
def test_an_answer_goes_as_near_to_where_it_was_asked_as_it_can(refusals, ends):
    at = AS_ASKED
    for reason in refusals:
        at = after(at, reason)
    assert at == ends


def test_whatever_refuses_it_ends():
    for refusals in product((LARGE, NO_PARTITION, MISSING), repeat=5):
        at, tries = AS_ASKED, 0
        for reason in refusals:
            if at.place is not Place.NOWHERE:
                at, tries = after(at, reason), tries + 1
        assert at.place is Place.NOWHERE
        assert tries <= 5
