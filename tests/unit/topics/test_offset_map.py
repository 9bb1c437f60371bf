import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import offset_map
from topics.offset_map import ForeignMetadata


@st.composite
def base_and_offsets(draw):
    base = draw(st.integers(0, 2**62))
    beyond = draw(st.sets(st.integers(1, 3000), max_size=400))
    return base, sorted(base + distance for distance in beyond)


@given(base_and_offsets())
def test_what_is_written_is_read_back(case):
    base, offsets = case
    runs = offset_map.runs_of(offsets)
    assert offset_map.decode(base, offset_map.encode(base, runs)) == runs


def test_an_empty_set_is_the_empty_text():
    assert offset_map.encode(7, []) == ""
    assert offset_map.decode(7, "") == []
    assert offset_map.decode(7, None) == []


def test_one_stuck_record_with_50000_finished_after_it_is_short():
    assert len(offset_map.encode(0, [(1, 50_000)])) < 30


def test_random_holes_take_the_bits():
    offsets = [n for n in range(1, 20_000) if (n * 2_654_435_761) % 2**32 < 2**31]
    text = offset_map.encode(0, offset_map.runs_of(offsets))
    assert text.startswith("rm1b:")
    assert len(text) <= offset_map.MAX_BYTES


def test_gaps_beyond_measure_do_not_blow_up_the_bits():
    assert offset_map.decode(0, offset_map.encode(0, [(10**15, 10**15)])) == [(10**15, 10**15)]


@given(base_and_offsets(), st.integers(0, 120))
def test_of_a_set_that_does_not_fit_the_longest_runs_are_kept(case, limit_bytes):
    base, offsets = case
    runs = offset_map.runs_of(offsets)
    text = offset_map.encode_most(base, runs, limit_bytes)
    assert len(text) <= limit_bytes
    kept = offset_map.decode(base, text)
    left_out = [last - first for first, last in set(runs) - set(kept)]
    assert set(kept) <= set(runs)
    assert max(left_out, default=0) <= min((last - first for first, last in kept), default=3000)
    assert kept == runs or len(offset_map.encode(base, runs)) > limit_bytes


@pytest.mark.parametrize(
    "text",
    ["hello", "rm1r:", "rm1b:", "rm1r:!!", "rm2r:abc", "rm1b:" + "x" * 50, '{"json": 1}', "\x00", "rm1r:ünï"],
)
def test_foreign_or_damaged_text_is_refused(text):
    with pytest.raises(ForeignMetadata):
        offset_map.decode(0, text)


@given(st.text(max_size=40), st.sampled_from(["", "rm1r:", "rm1b:"]))
def test_no_text_breaks_the_reader(text, prefix):
    try:
        runs = offset_map.decode(5, prefix + text)
    except ForeignMetadata:
        return
    assert all(first <= last for first, last in runs)
