"""CR312: a stance that one thread sets for itself holds for all threads."""

import pytest

HEALTHY = ("stance_leak.py", "serial", "fixed")


@pytest.mark.parametrize("mode", ["eager", "unguarded"])
def test_stance_leak_fails(watch, mode):
    result = watch("stance_leak.py", mode)
    assert result.verdict == "found"
    assert result.codes == {"CR312"}


def test_stance_leak_raises_where_the_other_thread_would_have_compiled(watch):
    result = watch("stance_leak.py", "raising")
    assert result.roots == {"CR312"}
    assert result.codes <= {"CR312", "CR901"}


def test_stance_leak_control_nobody_calls_under_it_but_the_thread_itself(in_turn):
    result = in_turn(*HEALTHY)
    assert result.verdict == "clean"
    assert [note["code"] for note in result.report["notes"]] == ["CR312"]


def test_stance_leak_fix_is_to_call_the_plain_function(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
