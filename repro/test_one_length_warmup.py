"""CR201: warmed with gradients and backward, but at one length and without dynamic shapes.

The incident's first fix. Dynamo specialises on the one length it saw, so the first other length
is a miss, and every thread has it at once.
"""

import pytest

ONE_LENGTH = ("--warmup", "grad", "--dynamic", "auto")


def test_one_length_warmup_fails(train, short_length):
    result = train("--threads", "3", *ONE_LENGTH, "--warmup-lens", short_length)
    assert result.verdict == "found"
    assert result.roots == {"CR201"}
    assert result.own_codes == {"CR201"}


@pytest.mark.slow
def test_one_length_warmup_control_one_thread_is_a_note(train, short_length):
    result = train("--threads", "1", *ONE_LENGTH, "--warmup-lens", short_length)
    assert result.verdict == "clean"
    assert result.report["notes"]


def test_one_length_warmup_fix_is_a_second_length(train):
    result = train("--threads", "3", *ONE_LENGTH)
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
