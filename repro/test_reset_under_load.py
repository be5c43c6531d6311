"""CR306: dynamo is reset while another thread is inside a call of compiled code."""

HEALTHY = ("reset_under_load.py", "serial", "fixed")


def test_reset_under_load_fails(watch):
    result = watch("reset_under_load.py", "race")
    assert result.verdict == "found"
    assert result.codes == {"CR306"}


def test_reset_under_load_control_nobody_calls_meanwhile(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_reset_under_load_fix_is_to_join_the_threads_first(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
