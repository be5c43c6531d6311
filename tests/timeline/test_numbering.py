"""Lost and repeated events are told from the numbering, whatever order it comes in."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from harness.timeline.narrow import StepSeen
from harness.timeline.numbering import Numbering

numbers = st.integers(0, 300_000)


@given(st.lists(numbers, max_size=60))
def test_missing_and_repeated_are_exact(seqs):
    numbering = Numbering()
    new = [numbering.add(seq) for seq in seqs]
    assert sum(new) == len(set(seqs))
    assert numbering.repeated == len(seqs) - len(set(seqs))
    assert numbering.missing == (max(seqs) - min(seqs) + 1 - len(set(seqs)) if seqs else 0)


@given(st.lists(numbers, max_size=60) | st.lists(st.integers(65_530, 65_545), max_size=16))
def test_the_first_missing_one(seqs):
    numbering, seen = Numbering(), set(seqs)
    for seq in seqs:
        numbering.add(seq)
    between = range(min(seqs, default=0), max(seqs, default=0))
    assert numbering.first_missing == next((n for n in between if n not in seen), None)


@given(st.lists(numbers, max_size=40), st.lists(numbers, max_size=40))
def test_many_at_once_are_as_one_by_one(before, seqs):
    one, many = Numbering(), Numbering()
    steps = [StepSeen(t_ns=0, seq=seq, pid=1, tid=1) for seq in seqs]
    for seq in before:
        one.add(seq)
        many.add(seq)
    assert many.only_new(steps) == [step for step in steps if one.add(step.seq)]
    assert (many.missing, many.repeated) == (one.missing, one.repeated)


def test_scattered_numbers_do_not_fill_the_memory():
    numbering = Numbering()
    tracemalloc.start()
    for number in range(5000):
        numbering.add(number * 10**12)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20
    assert numbering.missing == 0, "nothing can be said of numbers that were not all followed"
