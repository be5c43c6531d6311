"""CR301: a cached call sees the FX flag that another thread's trace has set.

Up to torch 2.13 the flag is one global for the process; from 2.14 on every thread has its own,
and the same program is clean.
"""

import torch

HAS_DEFECT = tuple(int(part) for part in torch.__version__.split(".")[:2]) <= (2, 13)
HEALTHY = ("fx_trace_during_call.py", "serial", "locked")


def test_fx_trace_during_call_fails(watch):
    result = watch("fx_trace_during_call.py", "race")
    if not HAS_DEFECT:
        assert result.verdict == "clean"
        return
    assert result.verdict == "found"
    assert result.roots == {"CR301"}
    assert result.codes <= {"CR301", "CR901"}


def test_fx_trace_during_call_control_one_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_fx_trace_during_call_fix_is_one_lock_around_both(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
