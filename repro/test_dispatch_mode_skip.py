"""CR318: a call under a dispatch mode makes dynamo give the function up for every thread.

Up to torch 2.13; from 2.14 on only the calls under the mode run eager, and the program is clean.
"""

import torch

HAS_DEFECT = tuple(int(part) for part in torch.__version__.split(".")[:2]) <= (2, 13)
HEALTHY = ("dispatch_mode_skip.py", "alone", "plain")


def test_dispatch_mode_skip_fails(watch):
    result = watch("dispatch_mode_skip.py", "compiled")
    if not HAS_DEFECT:
        assert result.verdict == "clean"
        return
    assert result.verdict == "found"
    assert result.codes == {"CR318"}


def test_dispatch_mode_skip_control_no_other_thread_calls(in_turn):
    result = in_turn(*HEALTHY)
    assert result.verdict == "clean"
    assert [note["code"] for note in result.report["notes"]] == ["CR318"]


def test_dispatch_mode_skip_fix_is_to_count_the_plain_function(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
