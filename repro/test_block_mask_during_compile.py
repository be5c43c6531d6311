"""CR310: building a block mask while another thread compiles dies with ``KeyError: 'custom'``.

flex attention annotates FX nodes in eager code from torch 2.13 on, through a process-wide dict
that the compiling thread replaces. Earlier versions have no such call and must be clean.
"""

import torch

HAS_DEFECT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
HEALTHY = ("block_mask_during_compile.py", "serial", "locked")


def test_block_mask_during_compile_fails(watch):
    result = watch("block_mask_during_compile.py", "race")
    if not HAS_DEFECT:
        assert result.verdict == "clean"
        return
    assert result.verdict == "found"
    assert result.roots == {"CR310"}
    assert result.codes <= {"CR310", "CR901"}


def test_block_mask_during_compile_control_one_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_block_mask_during_compile_fix_is_one_lock_around_both(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
