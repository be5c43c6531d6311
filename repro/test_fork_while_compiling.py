"""CR313: a worker is forked while a thread compiles, and its own compile waits for ever."""


def test_fork_while_compiling_fails(watch):
    result = watch("fork_while_compiling.py", "fork")
    assert result.verdict == "found"
    assert result.codes == {"CR313"}
    assert "`trainer` of process" in result.report["headline"]


def test_fork_while_compiling_control_forked_after_the_compile(watch):
    assert watch("fork_while_compiling.py", "serial").verdict == "clean"


def test_fork_while_compiling_fix_is_to_spawn(watch):
    assert watch("fork_while_compiling.py", "spawn").verdict == "clean"
