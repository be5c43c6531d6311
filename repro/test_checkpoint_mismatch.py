"""CR404: the recomputation of a checkpointed call runs eager, its forward ran compiled."""

import pytest

pytestmark = pytest.mark.usefixtures("gpu")

HEALTHY = ("checkpoint_mismatch.py", "serial", "fixed")


def test_checkpoint_mismatch_fails(watch):
    result = watch("checkpoint_mismatch.py", "stance")
    assert result.verdict == "found"
    assert result.roots == {"CR312"}
    assert result.codes <= {"CR312", "CR404", "CR901"}
    assert "CR404" in result.codes


def test_checkpoint_mismatch_control_the_stance_comes_after_the_backward(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_checkpoint_mismatch_fix_is_to_compile_around_the_checkpoint(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
