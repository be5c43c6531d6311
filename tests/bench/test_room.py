"""What a measurement is kept free of: the ends of Python's stack."""

import resource

from .room import roomy

REPEATS = 500


def faults_of(work):
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_no_call_in_a_roomy_frame_comes_to_the_end_of_a_chunk():
    def leaf():
        pass

    def descend(depth):
        for _ in range(REPEATS):
            leaf()
        if depth:
            descend(depth - 1)

    def deep():
        descend(200)

    deep()
    # At some depth each call of ``leaf`` begins a chunk, whose page is touched for the first time.
    assert faults_of(deep) >= REPEATS
    assert faults_of(lambda: roomy(deep)) < REPEATS / 2
