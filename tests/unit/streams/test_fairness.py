import pytest

from streams.policy import fairness


@pytest.mark.parametrize(
    ("shares", "index"),
    [([], None), ([0.0, 0.0], None), ([5.0], 1.0), ([2.0] * 10, 1.0), ([3.0, 0.0, 0.0], 1 / 3), ([1.0, 3.0], 0.8)],
)
def test_the_index_is_one_for_even_shares_and_one_nth_for_all_to_one(shares, index):
    assert fairness.jain(shares) == (None if index is None else pytest.approx(index))


def test_the_index_does_not_depend_on_the_unit():
    assert fairness.jain([1.0, 2.0, 5.0]) == pytest.approx(fairness.jain([1000.0, 2000.0, 5000.0]))
