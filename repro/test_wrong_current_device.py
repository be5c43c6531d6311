"""CR601: a thread launches a Triton kernel while its current device is not its tensors'."""

import pytest

pytestmark = pytest.mark.gpus(2)


def test_wrong_current_device_fails(watch):
    result = watch("wrong_current_device.py", "fails")
    assert result.verdict == "found"
    assert result.roots == {"CR601"}
    assert result.codes <= {"CR601", "CR901"}


def test_wrong_current_device_control_the_main_thread_has_set_it(watch):
    assert watch("wrong_current_device.py", "serial").verdict == "clean"


def test_wrong_current_device_fix_is_to_set_it_in_the_thread(watch):
    assert watch("wrong_current_device.py", "fixed").verdict == "clean"
