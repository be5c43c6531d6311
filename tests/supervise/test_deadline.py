"""What the supervisor does at the deadline, and what it says of the program then."""

import signal

import pytest

from harness.supervise import process as process_module
from harness.supervise.stacks import Stacks

IDLE = {
    "a lock": """
        import threading
        lock = threading.Lock(); lock.acquire(); print("up", flush=True); lock.acquire()
    """,
    "a child": """
        import subprocess
        child = subprocess.Popen(["sleep", "600"]); print("up", flush=True); child.wait()
    """,
    "a poll": """
        import time
        print("up", flush=True)
        while True: time.sleep(0.05)
    """,
}


@pytest.mark.parametrize("what", IDLE)
def test_a_program_that_waits_is_idle_at_the_deadline(supervised_from_up, what) -> None:
    ended = supervised_from_up(IDLE[what], timeout_s=2.5)
    assert ended.deadline_hit
    assert ended.idle_at_deadline is True
    assert ended.signal == signal.SIGTERM
    assert not ended.killed_from_outside
    assert ended.wall_s >= 2.5
    assert "program.py" in ended.stacks


BUSY = {
    "computing": "while True: pass",
    "a child computing": """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "while True: pass"])
    """,
    "recording": """
        import threading, time
        while True: t = threading.Thread(target=time.sleep, args=(0.2,)); t.start(); t.join()
    """,
}


@pytest.mark.parametrize("what", BUSY)
def test_a_program_that_works_is_not_idle_at_the_deadline(supervised, what) -> None:
    ended, _ = supervised(BUSY[what], timeout_s=2.5)
    assert ended.deadline_hit
    assert ended.idle_at_deadline is False


def test_the_stacks_at_the_deadline_name_every_thread(supervised_from_up) -> None:
    program = """
        import threading
        lock = threading.Lock(); lock.acquire()
        def holder_of_nothing(): lock.acquire()
        threading.Thread(target=holder_of_nothing, name="stuck", daemon=True).start()
        print("up", flush=True); lock.acquire()
    """
    ended = supervised_from_up(program, timeout_s=2.0, at_rest=True)
    assert "holder_of_nothing" in ended.stacks
    assert '"stuck"' in ended.stacks


def test_without_py_spy_the_programs_own_faulthandler_gives_the_stacks(
    supervised, monkeypatch
) -> None:
    monkeypatch.setattr(process_module, "take_stacks", lambda *_: Stacks("no right to look"))
    ended, _ = supervised(
        "def waits(): input_lock.acquire()\nimport threading\n"
        "input_lock = threading.Lock(); input_lock.acquire(); waits()",
        # It writes at a second before, by an alarm that is set before the program's first line.
        timeout_s=8.0,
    )
    assert ended.stacks.startswith("no right to look; ")
    assert "in waits" in ended.stacks
    assert ended.fatal_stacks == ""


def test_a_program_that_ignores_sigterm_is_killed(supervised_from_up, monkeypatch) -> None:
    monkeypatch.setattr(process_module, "_TERM_GRACE_S", 0.3)
    program = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN); print("up", flush=True); time.sleep(600)
    """
    ended = supervised_from_up(program, timeout_s=1.0)
    assert ended.signal == signal.SIGKILL
    assert ended.deadline_hit
    assert not ended.killed_from_outside


def test_a_program_may_save_something_at_the_deadline(supervised_from_up) -> None:
    program = """
        import signal, sys, time
        def save(*_): print("saved"); sys.exit(5)
        signal.signal(signal.SIGTERM, save); print("up", flush=True); time.sleep(600)
    """
    ended = supervised_from_up(program, timeout_s=1.0)
    assert (ended.exit_code, ended.signal, ended.deadline_hit) == (5, None, True)
    assert ended.stderr_tail.endswith("\nup\nsaved\n")
