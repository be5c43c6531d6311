"""CR316: a second thread runs backward under compiled autograd while one is being compiled."""

CONSEQUENCE = {"CR901"}  # the thread dies and the program goes on
HEALTHY = ("compiled_autograd.py", "serial", "locked")


def test_compiled_autograd_fails(watch):
    result = watch("compiled_autograd.py", "race")
    assert result.verdict == "found"
    assert result.roots == {"CR316"}
    assert result.codes <= {"CR316"} | CONSEQUENCE


def test_compiled_autograd_control_one_after_the_other(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_compiled_autograd_fix_is_one_lock_around_both(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
