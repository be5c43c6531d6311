"""CR304: eager code takes another thread's compile for its own.

From torch 2.13 on a compile holds the process-wide flag; earlier versions must be clean.
"""

import torch

HAS_DEFECT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
HEALTHY = ("is_compiling_seen.py", "serial", "fixed")


def test_is_compiling_seen_fails(watch):
    result = watch("is_compiling_seen.py", "race")
    if not HAS_DEFECT:
        assert result.verdict == "clean"
        return
    assert result.verdict == "found"
    assert result.codes == {"CR304"}


def test_is_compiling_seen_control_one_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_is_compiling_seen_fix_is_to_ask_dynamo(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
