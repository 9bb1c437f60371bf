"""By which way a request came is a claim of one of two words."""

import pytest

from topics import codec, interfaces


@pytest.mark.parametrize(
    ("headers", "interface"),
    [
        ([], "topic"),
        ([(interfaces.HEADER, b"http")], "http"),
        ([(interfaces.HEADER, b"topic")], "topic"),
        ([(interfaces.HEADER, b"carrier pigeon")], "topic"),
    ],
)
def test_a_word_that_nobody_knows_is_a_producers_own(headers, interface):
    claims = codec.read_headers(headers)
    assert (interfaces.of(claims.interface), claims.problem) == (interface, None)
