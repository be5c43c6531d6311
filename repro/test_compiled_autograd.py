"""CR316: a second thread runs backward under compiled autograd while one is being compiled."""

CONSEQUENCE = {"CR901"}  # the thread dies and the program goes on


def test_compiled_autograd_fails(watch):
    result = watch("compiled_autograd.py", "race")
    assert result.verdict == "found"
    assert result.roots == {"CR316"}
    assert result.codes <= {"CR316"} | CONSEQUENCE


def test_compiled_autograd_control_one_after_the_other(watch):
    assert watch("compiled_autograd.py", "serial").verdict == "clean"


def test_compiled_autograd_fix_is_one_lock_around_both(watch):
    # In a process of its own: compiled autograd keeps what it compiled, and would not compile.
    assert watch("compiled_autograd.py", "locked").verdict == "clean"
