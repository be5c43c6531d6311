"""CR309: under ``fullgraph=True`` one thread's call sets back the count that another's reads."""

import pytest
import torch

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
HEALTHY = ("fullgraph_counter.py", "serial", "fixed")


@pytest.mark.skipif(not (2, 12) <= VERSION <= (2, 14), reason="the count is no global there")
def test_fullgraph_counter_fails(watch):
    result = watch("fullgraph_counter.py", "race")
    assert result.verdict == "found"
    assert result.roots == {"CR309"}
    assert result.codes <= {"CR309", "CR901"}


def test_fullgraph_counter_control_one_call_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_fullgraph_counter_fix_is_to_leave_fullgraph_out(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
