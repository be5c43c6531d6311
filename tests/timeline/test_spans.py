"""The index of spans finds what a look at every span finds."""

from hypothesis import given
from hypothesis import strategies as st

from harness.timeline.model import Span
from harness.timeline.spans import Index

times = st.integers(0, 30)
spans = st.builds(
    lambda t0, length: Span(tid=1, t0=t0, t1=None if length is None else t0 + length, seqs=()),
    times,
    st.none() | st.integers(0, 12),
)


@given(st.lists(spans, max_size=25), times)
def test_covering_is_what_covers(found, t):
    assert Index(found).covering(t) == [span for span in found if span.covers(t)]


@given(st.lists(spans, max_size=25), times, st.integers(0, 8))
def test_meeting_is_any_moment_in_common(found, t0, length):
    t1 = t0 + length
    expected = [span for span in found if any(span.covers(t) for t in range(t0, t1 + 1))]
    assert Index(found).meeting(t0, t1) == expected
