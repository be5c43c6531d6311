"""Signals to the supervisor, which the program gets too."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.supervise import process as process_module
from harness.supervise import signals as signals_module
from harness.supervise.process import supervise

# What a handler of Python's interrupts. Python looks for signals between instructions, so one that
# comes just before a single long sleep would be handled after it.
_ON = "while True: time.sleep(0.01)"


def _signal_when(folder: Path, *sent: tuple[str, int]) -> threading.Thread:
    """Send ourselves signals, each as soon as the program has printed its word as a line."""
    log = folder / "child.log"

    def send() -> None:
        for word, number in sent:
            # Unbuffered, a line and its end are two writes.
            while f"{word}\n" not in log.read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), number)

    log.touch()
    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_ctrl_c_reaches_the_program_and_everything_in_its_group(prepare) -> None:
    program = f"""
        import subprocess, sys
        quiet = "import time; input()\\ntry:\\n print('up', flush=True)\\n {_ON}\\n" \\
                "except KeyboardInterrupt: print('child', flush=True)"
        process = subprocess.Popen([sys.executable, "-c", quiet], stdin=subprocess.PIPE)
        try:
            # Only now may the child say that it is up, and the signal come.
            process.stdin.write(b"go\\n"); process.stdin.flush(); process.wait()
        except KeyboardInterrupt: process.wait(); print("stopped"); sys.exit(4)
    """
    launch = prepare(program)
    sender = _signal_when(launch.folder, ("up", signal.SIGINT))
    ended = supervise(launch)
    sender.join()
    assert (ended.exit_code, ended.interrupted) == (4, True)
    assert not ended.killed_from_outside
    assert ended.stderr_tail.split() == ["up", "child", "stopped"]


def test_a_second_ctrl_c_ends_a_program_that_ignores_the_first(prepare) -> None:
    program = f"""
        import signal, time
        # Two that come while neither has been taken in are one.
        signal.signal(signal.SIGINT, lambda *_: print("one", flush=True))
        print("up", flush=True)
        {_ON}
    """
    launch = prepare(program)
    sender = _signal_when(launch.folder, ("up", signal.SIGINT), ("one", signal.SIGINT))
    ended = supervise(launch)
    sender.join()
    assert (ended.signal, ended.interrupted) == (signal.SIGKILL, True)
    assert ended.sent == ["SIGINT", "SIGKILL"]
    assert not ended.killed_from_outside


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_end_is_passed_on_and_comes_from_outside(
    prepare, number, monkeypatch
) -> None:
    launch = prepare("import os, time; print(os.getpid(), flush=True); time.sleep(600)")

    def tick() -> None:
        pid = (launch.folder / "child.log").read_text()
        # It has come to its sleep, which is what will be told of it.
        if pid.endswith("\n") and psutil.Process(int(pid)).status() == psutil.STATUS_SLEEPING:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(signals_module, "_ONE_WORD_S", 60.0)  # it may be said at several ticks
    ended = supervise(launch, tick)
    assert ended.signal == number
    assert ended.killed_from_outside
    assert not ended.interrupted
    assert ended.told_to_end == number.name
    assert ended.sent == [number.name]
    # What it was doing was looked at first.
    assert "program.py" in ended.stacks
    assert [wait.what for wait in ended.waits] == ["a sleep to end"]


def test_a_terminal_says_so_twice_and_means_it_once(prepare, monkeypatch) -> None:
    """Hanging up, it sends SIGHUP from the shell and from the kernel."""
    program = f"""
        import signal, sys, time
        def save(*_): print("saving", flush=True); time.sleep(1); print("saved"); sys.exit(0)
        signal.signal(signal.SIGHUP, save); print("up", flush=True)
        {_ON}
    """
    launch = prepare(program)
    monkeypatch.setattr(signals_module, "_ONE_WORD_S", 60.0)
    sender = _signal_when(launch.folder, ("up", signal.SIGHUP), ("saving", signal.SIGHUP))
    ended = supervise(launch)
    sender.join()
    assert (ended.exit_code, ended.told_to_end, ended.sent) == (0, "SIGHUP", ["SIGHUP"])
    assert ended.stderr_tail == "up\nsaving\nsaved\n"


def test_a_signal_before_the_program_runs_is_passed_on_once_it_does(prepare, monkeypatch) -> None:
    start = process_module.find_counter

    def interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        return start()

    monkeypatch.setattr(process_module, "find_counter", interrupted)
    ended = supervise(prepare("import time; time.sleep(600)"))
    assert (ended.told_to_end, ended.signal) == ("SIGTERM", signal.SIGTERM)
    assert not ended.deadline_hit


def test_what_the_caller_wants_stops_the_program(prepare) -> None:
    launch = prepare("import time; print('up', flush=True); time.sleep(600)")

    def tick() -> str | None:
        return "found CR101" if "up" in (launch.folder / "child.log").read_text() else None

    ended = supervise(launch, tick)
    assert (ended.stopped_on, ended.signal, ended.sent) == ("found CR101", 15, ["SIGTERM"])
    assert not ended.killed_from_outside
    assert not ended.deadline_hit


def test_the_callers_signal_handlers_come_back(supervised) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    supervised("pass")
    assert {number: signal.getsignal(number) for number in before} == before
