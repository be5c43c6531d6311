"""How a watched process ends: what it says last, and its stacks when a signal ends it."""

import functools
import os
import signal

import pytest

from harness.child.probes import invariants
from harness.child.session import FAULTS, name_at_end
from harness.events.schema import End
from harness.supervise.launch import SITE

LEAVES = {
    "import sys; sys.exit('no data left')": (1, "no data left"),
    "import sys; sys.exit(7)": (7, ""),
    "import sys; sys.exit()": (0, ""),
    "import sys; sys.exit(None)": (0, ""),
    "import sys; sys.exit(True)": (1, ""),
    "import sys; sys.exit(['a', 1])": (1, "['a', 1]"),
    "from sys import exit as leave; leave('bye ' * 9000)": (1, "bye " * 500 + " ..."),
    "pass": (0, ""),
}


@pytest.mark.parametrize("text", LEAVES)
def test_the_text_of_sys_exit_is_kept_and_the_exit_code_unchanged(run, text) -> None:
    child = run(text)
    code, said = LEAVES[text]
    (end,) = child.of(End)
    assert (child.code, end.data.exit_text) == (code, said)


def test_sys_exit_with_an_object_that_cannot_be_read(run) -> None:
    child = run("""
        import sys
        class Odd:
            def __str__(self): raise KeyError("no")
        sys.exit(Odd())
    """)
    (end,) = child.of(End)
    assert end.data.exit_text == "(its text cannot be read: KeyError)"


def test_a_thread_that_leaves_says_nothing_of_the_program(run) -> None:
    child = run("""
        import sys, threading
        t = threading.Thread(target=lambda: sys.exit("only me")); t.start(); t.join()
    """)
    (end,) = child.of(End)
    assert (child.code, end.data.exit_text) == (0, "")


def test_sys_exit_refuses_what_it_refused(run) -> None:
    child = run("""
        import sys
        try: sys.exit(1, 2)
        except TypeError as error: print(error)
    """)
    assert child.code == 0
    assert "at most 1 argument" in child.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1])
def test_signals_that_a_program_may_survive_are_left_as_they_were(run, number) -> None:
    """To look at running threads from a handler crashes now and then, and changes the ending."""
    child = run(f"""
        import signal
        print(signal.getsignal({int(number)}) in (signal.SIG_DFL, signal.default_int_handler))
        with open("/proc/self/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
        print(bool(int(caught.split()[1], 16) >> {int(number) - 1} & 1))
    """)
    caught = number == signal.SIGINT  # Python's own
    assert child.out.split() == ["True", str(caught)]


def test_a_crash_finds_every_stack_and_each_process_writes_its_own(run) -> None:
    child = run("""
        import ctypes, subprocess, sys, threading
        ready, never = threading.Event(), threading.Event()
        def stands_here():
            ready.set(); never.wait()
        threading.Thread(target=stands_here, daemon=True).start()
        ready.wait()
        code = "import ctypes\\ndef other(): ctypes.string_at(0)\\nother()"
        print(subprocess.run([sys.executable, "-c", code]).returncode, flush=True)
        ctypes.string_at(0)
    """)
    assert (child.code, child.out) == (-signal.SIGSEGV, "-11\n")
    own = (child.folder / FAULTS).read_text()
    assert "stands_here" in own
    assert "in other" not in own
    (other,) = (p for p in child.folder.glob("faulthandler-*.txt") if p.stat().st_size)
    assert "in other" in other.read_text()


def test_ctrl_c_while_the_watch_is_loaded_ends_it_without_a_traceback(start, tmp_path) -> None:
    """The watch imports ``json`` on its way in; one that comes first on the path sends SIGINT."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "json.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    process = start("print('it ran')", PYTHONPATH=f"{SITE}{os.pathsep}{tmp_path / 'first'}")
    said = process.communicate(timeout=60)
    assert (process.returncode, *said) == (-signal.SIGINT, "", "")


def test_a_hook_for_the_end_is_called_by_the_part_of_the_watch_that_left_it() -> None:
    hook = functools.partial(invariants.check, None)
    assert name_at_end(hook) == "invariants at the end"
    assert name_at_end(lambda: None) == "test_session at the end"
