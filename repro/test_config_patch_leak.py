"""CR305: the end of one thread's call undoes what ``dynamic=True`` patched for another's."""

import pytest
import torch

OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12)
HEALTHY = ("config_patch_leak.py", "serial", "fixed")


@pytest.mark.skipif(not OLD, reason="from torch 2.12 on the config is per thread")
def test_config_patch_leak_fails(watch):
    result = watch("config_patch_leak.py", "race")
    assert result.verdict == "found"
    assert result.roots == {"CR305"}


@pytest.mark.skipif(OLD, reason="up to torch 2.11 the config is one for the process")
def test_config_patch_leak_is_gone_where_the_config_is_per_thread(watch):
    assert watch("config_patch_leak.py", "race").verdict == "clean"


def test_config_patch_leak_control_one_call_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_config_patch_leak_fix_is_to_mark_the_tensors(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
