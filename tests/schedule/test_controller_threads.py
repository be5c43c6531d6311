"""The controller with real threads, a real recorder and a real lock."""

import os
import signal
import threading
import time

from harness.child.schedule.make import make_scheduler

from .real_threads import LIMIT_S, controller, events, join, last, start


def test_the_last_to_arrive_goes_first(recorder) -> None:
    holds = controller(recorder, "t2:step:enter", "t1:step:enter", "main:step:enter")
    order = []
    here = threading.Event()

    def one():
        here.set()
        holds.reach("step", "enter")
        order.append("t1")

    def two():
        here.wait()
        holds.reach("step", "enter")
        order.append("t2")
        holds.reach("wrapper", "enter")

    threads = start(holds, one, two)
    holds.reach("step", "enter")
    join(threads)
    assert set(order) == {"t1", "t2"}
    passed = [(e["data"]["hold"], e["thread"]) for e in events(recorder, "hold")]
    assert passed == [
        ("t2:step:enter", "thread-2"),
        ("t1:step:enter", "thread-1"),
        ("main:step:enter", "MainThread"),
    ]
    assert last(recorder)["state"] == "done"


def test_a_thread_inside_waits_until_the_other_has_looked(recorder) -> None:
    """The shape of every race here: one is inside, the other reads, and only then it leaves."""
    holds = controller(
        recorder,
        "A:fx_trace:enter",
        "B:wrapper:enter",
        "B:wrapper:exit",
        "A:fx_trace:exit",
    )
    flag, seen = [], []

    def writer():
        flag.append(1)
        holds.reach("fx_trace", "enter")
        holds.reach("fx_trace", "exit")
        flag.clear()

    def reader():
        holds.reach("wrapper", "enter")
        seen.append(bool(flag))
        holds.reach("wrapper", "exit")

    join(start(holds, reader, writer))
    assert seen == [True]
    assert [e["data"]["number"] for e in events(recorder, "hold")] == [0, 1, 2, 3]


def test_a_lock_that_a_held_thread_owns_ends_it_as_impossible_at_once(recorder) -> None:
    holds = controller(recorder, "t1:fx_trace:enter", "t2:dynamo_compile:enter", "t1:fx_trace:exit")
    lock = threading.RLock()
    owner = []
    inside = threading.Event()

    def one():
        with lock:
            owner.append(threading.get_native_id())
            inside.set()
            holds.reach("fx_trace", "enter")
            holds.reach("fx_trace", "exit")
            owner.clear()

    def two():
        inside.wait()
        tid = threading.get_native_id()
        holds.reach("wrapper", "enter")
        holds.blocked[tid] = lambda: owner[0] if owner else None
        with lock:
            del holds.blocked[tid]
            holds.reach("dynamo_compile", "enter")

    join(start(holds, one, two))  # however long the patience
    said = last(recorder)
    assert said["state"] == "impossible"
    assert said["next"] == "t2:dynamo_compile:enter"
    assert said["reached"] == 1


def test_an_owner_that_let_go_long_ago_makes_nothing_impossible(recorder) -> None:
    """The thread that a waiter began to wait for is held by now, without the lock."""
    holds = controller(recorder, "t1:step:enter", "t2:step:enter")
    ready, go = threading.Event(), threading.Event()

    def one():
        holds.blocked[threading.get_native_id()] = lambda: None
        ready.set()
        go.wait()
        holds.blocked.clear()
        holds.reach("step", "enter")

    def two():
        ready.wait()
        holds.reach("phase", "enter")
        go.set()
        holds.reach("step", "enter")

    join(start(holds, one, two))
    assert last(recorder)["state"] == "done"


def test_a_guard_is_never_held_but_the_next_point_is(recorder) -> None:
    holds = controller(recorder, "t2:step:enter", "t1:guard_miss:enter")
    past_guard, passed = threading.Event(), []

    def one():
        holds.reach("guard_miss", "enter")
        past_guard.set()
        holds.reach("lock_wait", "enter")
        passed.append("t1")

    def two():
        assert past_guard.wait(LIMIT_S)  # t1 went through, though it was not its turn
        passed.append("t2")
        holds.reach("step", "enter")

    join(start(holds, one, two))
    assert passed == ["t2", "t1"]
    assert last(recorder)["state"] == "done"


def test_a_thread_that_has_ended_is_not_waited_for(recorder) -> None:
    holds = controller(recorder, "t2:step:enter", "t1:step:enter")
    waits = threading.Event()

    def two():
        holds.reach("wrapper", "enter")

    first, second = start(holds, lambda: (waits.wait(), holds.reach("step", "enter")), two)
    join([second])
    waits.set()
    join([first])
    said = last(recorder)
    assert (said["state"], said["reason"]) == ("not reached", "its thread has ended")


def test_what_is_left_at_the_programs_end_was_not_reached(recorder) -> None:
    holds = controller(recorder, "main:step:enter", "t1:step:enter")
    holds.reach("step", "enter")
    for hook in recorder.at_end:
        hook()
    said = last(recorder)
    assert (said["state"], said["reason"]) == ("not reached", "the program ended")
    assert said["reached"] == 1


def test_a_fork_has_no_schedule(recorder) -> None:
    holds = controller(recorder, "t1:step:enter", "main:step:enter")
    pid = os.fork()
    if pid == 0:
        holds.reach("step", "enter")  # would wait for t1
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert holds._off is False


def test_a_signal_handler_may_come_to_a_point_while_its_thread_waits(recorder) -> None:
    holds = controller(recorder, "t1:step:enter", "main:step:enter")
    came = threading.Event()

    def handle(number, frame):
        holds.reach("block_mask", "enter")
        came.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:

        def one():
            while not holds._waiting:
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert came.wait(LIMIT_S)
            holds.reach("step", "enter")

        threads = start(holds, one)
        holds.reach("step", "enter")
        join(threads)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert last(recorder)["state"] == "done"


def test_a_failure_inside_lets_the_program_go_on(recorder) -> None:
    holds = controller(recorder, "t1:step:enter", "main:step:enter")
    holds._order = None
    holds.reach("step", "enter")
    assert recorder.lost == 1
    holds.reach("step", "enter")  # and it is off now
    assert recorder.lost == 1


def test_no_holds_are_no_controller(recorder) -> None:
    assert make_scheduler(recorder, {"strategy": "holds", "holds": []}, patience_s=1.0) is None
    assert not events(recorder, "schedule")
