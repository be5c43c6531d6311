"""CR308: of two FX traces that cross, the patches of one stay.

Up to torch 2.13 the FX flag, which they save and restore in the same way, stays set as well.
"""

import torch

FLAG_OF_PROCESS = tuple(int(part) for part in torch.__version__.split(".")[:2]) <= (2, 13)
HEALTHY = ("fx_traces_overlap.py", "serial", "locked")


def test_fx_traces_overlap_fails(watch):
    result = watch("fx_traces_overlap.py", "race")
    assert result.verdict == "found"
    assert result.roots == ({"CR302", "CR308"} if FLAG_OF_PROCESS else {"CR308"})
    assert result.codes - result.roots <= {"CR901"}


def test_fx_traces_overlap_control_one_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_fx_traces_overlap_fix_is_one_lock_around_both(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
