"""CR307: a backend takes a lock that another thread holds while it compiles."""

import pytest

LIMIT = ("--timeout", "30")
"""A hang is told at the time limit, and only if nothing moved in the two seconds before."""
HEALTHY = ("lock_order.py", "serial", "outside")


@pytest.fixture(scope="module")
def crossed(watch_once):
    return watch_once("lock_order.py", "crossed", flags=LIMIT)


def test_lock_order_fails(crossed):
    assert crossed.verdict == "found"
    assert crossed.codes == {"CR307"}


def test_lock_order_names_both_locks_and_who_holds_which(crossed):
    headline = crossed.report["headline"]
    assert "`trainer` held dynamo's compile lock while it compiled" in headline
    assert "waited for `registry`; `server` held `registry`" in headline


def test_lock_order_control_one_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_lock_order_fix_is_to_compile_before_the_lock_is_taken(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
