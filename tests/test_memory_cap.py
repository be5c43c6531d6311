"""``--memory-cap``: what is refused, and how it reaches the program."""

import math

import pytest

from dflash_min.errors import UsageError
from harness.child.settings import Settings
from harness.flow import settings_of
from harness.spec import WatchOptions
from harness.supervise.launch import Launch


@pytest.mark.parametrize("cap", [0.0, -1.0, 0.4, math.nan, math.inf, 1e9])
def test_a_cap_that_bounds_nothing_or_lets_nothing_run_is_refused(cap):
    with pytest.raises(UsageError, match="--memory-cap must be"):
        WatchOptions(memory_cap=cap).check([])


def test_a_cap_without_the_probe_that_sets_it_is_refused():
    with pytest.raises(UsageError, match="--no-probe"):
        WatchOptions(memory_cap=2.0, no_probe=("memory",)).check([])


@pytest.mark.parametrize(("cap", "expected"), [(None, None), (0.5, 1 << 29), (20.0, 20 << 30)])
def test_the_cap_reaches_the_program_in_bytes(tmp_path, cap, expected):
    options = WatchOptions(memory_cap=cap)
    options.check([])
    launch = Launch(("true",), tmp_path, settings_of(options, None), 1.0)
    text = launch.settings(1.0).dumps()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPILE_RACE_WATCH", text)
        settings = Settings.from_environment()
    assert settings is not None
    assert settings.memory_cap == expected
