"""CR403: one thread's shapes use up the recompile limit, and another thread's calls run eager."""

HEALTHY = ("recompile_limit.py", "alone", "fixed")


def test_recompile_limit_fails(watch):
    result = watch("recompile_limit.py", "shared")
    assert result.verdict == "found"
    assert result.codes == {"CR403"}


def test_recompile_limit_control_the_other_thread_stays_within_the_warm_up(in_turn):
    result = in_turn(*HEALTHY)
    assert result.verdict == "clean"
    assert "CR403" in {note["code"] for note in result.report["notes"]}


def test_recompile_limit_fix_is_a_limit_of_the_functions_own(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
