"""The README says what the code says."""

from tests.support import readme
from topics.outcomes import Outcome


def test_the_tables_are_those_of_the_code():
    text = readme.README.read_text()
    assert readme.render(text) == text, "run `python -m tests.support.readme`"


def test_every_outcome_is_explained():
    assert set(readme.MEANINGS) == set(Outcome)
