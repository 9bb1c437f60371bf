import pytest

from rampmeter import durations


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (-3, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (3 * 86400, "3d")]
)
def test_a_duration_is_shown_in_one_unit(seconds, shown):
    assert shown == durations.shown(seconds)
