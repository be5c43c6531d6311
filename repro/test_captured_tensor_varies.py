"""CR202: the mask function closes over a tensor whose size changes; every other shape stays.

Dynamo guards on what a mask function captures as on any input. With ``dynamic=True`` that size is
symbolic and nothing misses, as the trainer shows; the program compiles with ``dynamic=False``.
"""

import pytest

pytestmark = pytest.mark.usefixtures("gpu")


def test_captured_tensor_varies_fails(watch):
    result = watch("captured_tensor_varies.py", "vary")
    assert result.verdict == "found"
    assert result.roots == {"CR202"}
    assert result.own_codes == {"CR202"}


def test_captured_tensor_varies_control_one_thread_is_a_note(watch):
    result = watch("captured_tensor_varies.py", "serial")
    assert result.verdict == "clean"
    assert result.count("compiles") > 1


def test_captured_tensor_varies_fix_is_a_fixed_size(watch):
    result = watch("captured_tensor_varies.py", "padded")
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0


@pytest.mark.slow
def test_captured_tensor_varies_in_the_trainer_needs_two_warmup_lengths(train):
    result = train("--threads", "3", "--warmup", "grad", "--anchors", "vary", "--dynamic", "true")
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
