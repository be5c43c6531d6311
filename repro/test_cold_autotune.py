"""CR311: two threads make the first call of one autotuned triton kernel."""

import pytest

from .conftest import PROGRAMS

HEALTHY = ("cold_autotune.py", "serial", "warmed", "locked")


@pytest.fixture(scope="module")
def race(watch_once):
    return watch_once("cold_autotune.py", "race")


def test_cold_autotune_fails(race):
    assert race.verdict == "found"
    assert race.roots == {"CR311"}
    assert race.codes <= {"CR311", "CR901"}  # the thread dies and the program goes on


def test_cold_autotune_names_the_kernel_and_who_called_it_meanwhile(race):
    headline = race.report["headline"]
    assert "`first` failed in the first call of `doubled`" in headline
    assert "thread `second` called it meanwhile" in headline


def test_cold_autotune_is_forced_by_holds_alone(watch):
    plan = str(PROGRAMS / "cold_autotune.toml")
    result = watch("cold_autotune.py", "natural", flags=("--schedule", plan))
    assert (result.verdict, result.roots) == ("found", {"CR311"})


def test_cold_autotune_control_one_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_cold_autotune_fix_is_to_call_first_in_one_thread(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_cold_autotune_fix_is_a_lock_around_the_calls(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
