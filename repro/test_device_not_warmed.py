"""CR204: only the first GPU was warmed; a drafter on the second one misses on the device index."""

import pytest

pytestmark = pytest.mark.gpus(2)
LAYOUT = ("--threads", "2", "--targets", "cuda:0", "--drafters", "cuda:0,cuda:1")


def test_device_not_warmed_fails(train):
    result = train(*LAYOUT, "--warmup", "grad", "--warmup-devices", "first")
    assert result.verdict == "found"
    assert result.roots == {"CR204"}


def test_device_not_warmed_control_all_drafters_on_the_warmed_device(train):
    layout = ("--threads", "2", "--targets", "cuda:0", "--drafters", "cuda:0,cuda:0")
    result = train(*layout, "--warmup", "grad", "--warmup-devices", "first")
    assert result.verdict == "clean"


def test_device_not_warmed_fix_is_to_warm_every_device(train):
    result = train(*LAYOUT, "--warmup", "grad")
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
