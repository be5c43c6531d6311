"""What threads wait for, read off real stacks."""

import faulthandler
import os
import threading

import pytest

from harness.child.probes import lock
from harness.supervise.waits import Frame, wait_of, waits_of_faults

# A statement that waits, what it is said to wait for, and whether the source line told it.
WAITS = {
    "guard.acquire()": ("`guard`", True),
    "with guard: pass": ("`guard`", True),
    "state.lock.acquire(timeout=99)": ("`state.lock`", True),
    "threading.Event().wait()": ("an event", False),
    "wait_on(threading.Condition())": ("a condition", False),
    "threading.Semaphore(0).acquire()": ("a semaphore", False),
    "threading.Barrier(2).wait()": ("the other threads at a barrier", False),
    "queue.Queue().get()": ("an item of a queue", False),
    "full.put(1)": ("room in a queue", False),
    "concurrent.futures.Future().result()": ("a future's result", False),
    "subprocess.run(['sleep', '60'])": ("another process's end", False),
    "main.join()": ("the end of a thread", False),
    "time.sleep(60)": ("a sleep to end", True),
    "asyncio.run(asyncio.sleep(60))": ("its event loop's next event", False),
    "simple.get()": ("`simple.get`", True),
}
SETTING = """
import asyncio, concurrent.futures, queue, subprocess, sys, threading, time, types
guard = threading.Lock(); guard.acquire()
state = types.SimpleNamespace(lock=threading.RLock()); state.lock.acquire()
full = queue.Queue(1); full.put(0); simple = queue.SimpleQueue(); main = threading.main_thread()
def wait_on(condition):
    with condition: condition.wait()
def start(function): threading.Thread(target=function, name=function.__name__, daemon=True).start()
"""


def test_each_kind_of_wait_is_told_from_the_stacks_at_the_deadline(supervised_from_up):
    text = SETTING
    for number, statement in enumerate(WAITS):
        text += f"def waits_{number}():\n    {statement}\nstart(waits_{number})\n"
    text += "print('up', flush=True)\nguard.acquire()\n"
    ended = supervised_from_up(text, at_rest=True, timeout_s=2.0)
    assert ended.idle_at_deadline
    found = {wait.thread: wait for wait in ended.waits}
    told = {
        statement: (found[f"waits_{number}"].what, found[f"waits_{number}"].read)
        for number, statement in enumerate(WAITS)
    }
    assert told == WAITS
    main = found["MainThread"]
    assert (main.what, main.read, main.function) == ("`guard`", True, "<module>")
    assert main.pid == main.tid
    assert main.file.endswith("program.py")
    inner = found["waits_3"]
    # The program's own frame, not the library's in which it waits.
    assert (inner.function, inner.file) == ("waits_3", main.file)
    assert inner.tid not in {0, main.tid}
    assert "Thread.run (threading.py:" in ended.stacks
    assert '"waits_3"' in ended.stacks


def test_a_thread_that_computes_waits_for_nothing(supervised_from_up):
    text = """
        import threading
        def spin():
            while True: pass
        threading.Thread(target=spin, name="spinner").start()
        print("up", flush=True)
    """
    ended = supervised_from_up(text, timeout_s=2.0)
    assert ended.idle_at_deadline is False
    assert "spinner" not in {wait.thread for wait in ended.waits}
    assert "spinner" in ended.stacks


def test_hundreds_of_threads_are_all_there(supervised_from_up):
    text = """
        import threading
        lock = threading.Lock(); lock.acquire()
        def one_of_many(): lock.acquire()
        for n in range(400): threading.Thread(target=one_of_many, name=f"many-{n}").start()
        print("up", flush=True)
    """
    ended = supervised_from_up(text, at_rest=True, timeout_s=1.0)
    waiting = {wait.thread for wait in ended.waits if wait.what == "`lock`"}
    assert waiting == {f"many-{n}" for n in range(400)}


def test_faulthandlers_own_text_is_read_as_well(tmp_path):
    ready, taken = threading.Event(), threading.Lock()

    def stands_in_the_lock():
        ready.set()
        taken.acquire()

    file = tmp_path / "text"
    with taken:
        thread = threading.Thread(target=stands_in_the_lock)
        thread.start()
        ready.wait()
        with file.open("w") as out:
            faulthandler.dump_traceback(out, all_threads=True)
    thread.join()
    waits = waits_of_faults(file.read_text(), os.getpid())
    (wait,) = (wait for wait in waits if wait.function == "stands_in_the_lock")
    assert (wait.tid, wait.ident, wait.file) == (0, thread.ident, __file__)
    assert wait.thread.startswith("0x") or wait.thread
    assert len(waits) >= 2


@pytest.mark.parametrize(
    "text", ["", "Timeout (0:00:09)!\n", "Thread 0x1 (most recent call first):"]
)
def test_a_text_without_frames_tells_nothing(text):
    assert waits_of_faults(text, 1) == []


def test_a_source_that_is_gone_leaves_the_wait_unknown():
    wait = wait_of(1, 2, "x", [Frame("f", "/no/such/file.py", 3)])
    assert (wait.what, wait.read, wait.function, wait.line) == ("", False, "f", 3)


def test_compile_lock_and_imports_have_names_of_their_own():
    probe = Frame("WatchedLock._wait", lock.__file__, 71)
    user = Frame("two", "/home/user/train.py", 14)
    wait = wait_of(1, 2, "holder", [probe, probe, user])
    assert (wait.what, wait.function) == ("dynamo's compile lock", "two")
    importing = Frame("_ModuleLock.acquire", "<frozen importlib._bootstrap>", 150)
    assert wait_of(1, 2, "x", [importing, user]).what == "the lock of a module being imported"


@pytest.mark.parametrize(
    "file", ["/home/user/app/queue.py", "/v/lib/python3.11/site-packages/a/queue.py"]
)
def test_a_file_that_only_has_a_librarys_name_waits_for_nothing_known(file):
    assert wait_of(1, 2, "x", [Frame("get", file, 3)]).what == ""
    library = Frame("Queue.get", "/usr/lib/python3.12/queue.py", 171)
    assert wait_of(1, 2, "x", [library]).what == "an item of a queue"


def test_a_backward_pass_is_known_by_torchs_file():
    engine = Frame("f", "/v/lib/python3.11/site-packages/torch/autograd/graph.py", 9)
    assert wait_of(1, 2, "x", [engine]).what == "a backward pass in autograd's engine"
