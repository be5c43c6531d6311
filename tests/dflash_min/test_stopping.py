"""Signals to a command: the first ends its work in order, and the process ends by that signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import dflash_min
from dflash_min import stopping

ROOT = str(Path(dflash_min.__file__).parents[1])
NAMES = ["SIGINT", "SIGTERM", "SIGHUP"]
BEFORE = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]

# `work` ends when it is asked to, if it can be; "up" and "asked" are said when that is so.
PROGRAM = """
    import os, sys, time, threading
    from dflash_min import stopping

    assert "torch" not in sys.modules
    asked = threading.Event()

    def stop():
        os.write(1, b"asked\\n")
        asked.set()
        return sys.argv[1] != "idle"

    with stopping.stopped_by_signals(stop, lambda name: f"ended by {name}") as signalled:
        print("up", flush=True)
        while not asked.is_set() or sys.argv[1] == "stuck":
            time.sleep(0.01)
    print("in order", flush=True)
    if signalled.signal is not None:
        stopping.end_by(signalled.signal)
"""


# A thread that does not end, which the interpreter would wait for.
LEAVING = """
    import os, signal, sys, threading
    from dflash_min import stopping

    threading.Thread(target=threading.Event().wait).start()
    error, number = eval(sys.argv[1])
    print("flushed", end="")
    try:
        raise error
    except BaseException as caught:
        stopping.leave_threads(caught, number)
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("RuntimeError('stuck'), None", 1, "RuntimeError: stuck\n"),
        ("RuntimeError('stuck'), signal.SIGTERM", -signal.SIGTERM, "RuntimeError: stuck\n"),
        ("SystemExit(3), None", 3, ""),
        ("SystemExit('text'), None", 1, ""),
        ("SystemExit(1), signal.SIGHUP", -signal.SIGHUP, ""),
    ],
)
def test_a_process_ends_in_spite_of_a_stuck_thread(how, code, said):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LEAVING), how],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (code, "flushed")
    assert done.stderr.endswith(said)
    assert bool(done.stderr) == bool(said)


def test_work_that_asks_is_told_of_a_signal():
    with stopping.asked_by_signals() as signalled:
        assert not signalled.asked()
        signal.raise_signal(signal.SIGTERM)
        assert signalled.asked()
        assert signalled.signal is signal.SIGTERM
    # The next one would have ended this process: all are as at the start of one.
    for number, handler in zip(stopping.SIGNALS, BEFORE, strict=True):
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, handler)


@pytest.fixture
def start():
    started = []

    def begin(kind):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), kind],
            env={**os.environ, "PYTHONPATH": ROOT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", NAMES)
def test_the_work_ends_in_order_and_the_process_by_the_signal(name, start):
    process = start("busy")
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (-signal.Signals[name], "asked\nin order\n", "")


@pytest.mark.parametrize("name", NAMES)
def test_with_nothing_to_wait_for_the_process_ends_at_once(name, start):
    process = start("idle")
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.Signals[name], "asked\n")
    assert err == f"ended by {name}\n"


@pytest.mark.parametrize("second", NAMES)
def test_a_second_signal_ends_at_once(second, start):
    process = start("stuck")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.Signals[second])
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.Signals[second], "")


def test_a_signal_that_is_ignored_stays_ignored(start):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the test's end; programs inherit it
    process = start("busy")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGTERM, "asked\nin order\n")


def test_handlers_are_as_they_were_afterwards_and_others_are_left_alone():
    def theirs(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        with stopping.stopped_by_signals(lambda: True, str) as signalled:
            assert signal.getsignal(signal.SIGTERM) is theirs
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signalled.signal is None
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_no_handler_is_set():
    seen = []

    def work():
        with stopping.stopped_by_signals(lambda: True, str):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
