"""CR320: on a CUDA build that sees no GPU, a compile after the first one's thread has ended."""

import pytest

from harness.causes.versions import frees_device_guard
from harness.child.versions import torch_version

from .conftest import TORCH

AFFECTED = frees_device_guard(TORCH, torch_version()[1])
only_affected = pytest.mark.skipif(
    not AFFECTED, reason="only CUDA builds of torch 2.10 and 2.11 free the guard with a thread"
)


@only_affected
def test_device_guard_freed_fails(watch):
    result = watch("device_guard_freed.py", "ended")
    assert (result.verdict, result.codes) == ("found", {"CR320"})
    assert "first one was made by thread `worker`, which has ended" in result.report["headline"]


@only_affected
def test_device_guard_freed_control_the_first_thread_lives(watch):
    assert watch("device_guard_freed.py", "living").verdict == "clean"


@only_affected
def test_device_guard_freed_fix_is_to_compile_in_the_main_thread_first(watch):
    assert watch("device_guard_freed.py", "warmed").verdict == "clean"


@pytest.mark.skipif(AFFECTED, reason="CUDA builds of torch 2.10 and 2.11 free the guard")
def test_device_guard_freed_is_gone_where_the_process_keeps_it(watch):
    assert watch("device_guard_freed.py", "ended").verdict == "clean"
