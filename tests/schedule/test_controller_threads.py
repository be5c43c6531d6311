"""The controller with real threads, a real recorder and a real lock."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.child.recorder import Recorder
from harness.child.schedule import controller as controller_module
from harness.child.schedule.controller import Controller
from harness.child.schedule.make import make_scheduler
from harness.child.schedule.order import Hold
from harness.child.schedule.priorities import Priorities


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path))


def controller(recorder, *texts, patience_s=20.0):
    return Controller(recorder, [Hold.parse(text) for text in texts], patience_s=patience_s)


def events(recorder, point):
    with (Path(recorder.folder) / "events.jsonl").open(encoding="utf-8") as file:
        return [e for e in map(json.loads, file) if e["point"] == point]


def last(recorder):
    return events(recorder, "schedule")[-1]["data"]


def start(scheduler, *bodies):
    """Start threads as a program would, t1 first."""
    threads = []
    for number, body in enumerate(bodies, 1):
        thread = threading.Thread(target=body, name=f"thread-{number}", daemon=True)
        scheduler.number_thread(thread)
        threads.append(thread)
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


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

    began = time.monotonic()
    join(start(holds, one, two))
    assert time.monotonic() - began < 15  # far below the patience
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
        assert past_guard.wait(20)  # t1 went through, though it was not its turn
        passed.append("t2")
        holds.reach("step", "enter")

    join(start(holds, one, two))
    assert passed == ["t2", "t1"]
    assert last(recorder)["state"] == "done"


class Clock:
    """Time that passes only when the controller looks at it."""

    def __init__(self, *, busy):
        self.now = 0.0
        self.busy = busy

    def monotonic(self):
        self.now += 0.05
        return self.now

    def process_time(self):
        return self.now if self.busy else 0.0


@pytest.fixture
def clock(monkeypatch):
    def set_clock(*, busy):
        made = Clock(busy=busy)
        monkeypatch.setattr(controller_module, "time", made)
        monkeypatch.setattr(controller_module, "helpers_cpu_s", lambda: None)
        return made

    return set_clock


def test_an_idle_process_is_given_up_after_its_patience(recorder, clock) -> None:
    now = clock(busy=False)
    holds = controller(recorder, "A:step:enter", "B:wrapper:enter", patience_s=5.0)
    join(start(holds, lambda: holds.reach("wrapper", "enter")))
    said = last(recorder)
    assert said["state"] == "not reached"
    assert "nothing moved for 5." in said["reason"]
    assert said["next"] == "A:step:enter"
    assert now.now < 7


def test_a_busy_process_is_waited_for_longer(recorder, clock) -> None:
    now = clock(busy=True)
    holds = controller(recorder, "t2:step:enter", "t1:wrapper:enter", patience_s=2.0)

    def computes():
        while now.now < 6.0:
            time.sleep(0.001)
        holds.reach("step", "enter")

    join(start(holds, lambda: holds.reach("wrapper", "enter"), computes))
    assert last(recorder)["state"] == "done"


def test_a_process_whose_workers_are_busy_is_waited_for_longer(
    recorder, clock, monkeypatch
) -> None:
    now = clock(busy=False)
    monkeypatch.setattr(controller_module, "helpers_cpu_s", lambda: now.now)
    holds = controller(recorder, "t2:step:enter", "t1:wrapper:enter", patience_s=2.0)

    def sleeps():
        while now.now < 6.0:
            time.sleep(0.001)
        holds.reach("step", "enter")

    join(start(holds, lambda: holds.reach("wrapper", "enter"), sleeps))
    assert last(recorder)["state"] == "done"


def test_a_process_that_computes_for_ever_is_given_up_in_the_end(recorder, clock) -> None:
    clock(busy=True)
    holds = controller(recorder, "A:step:enter", "B:wrapper:enter", patience_s=2.0)
    join(start(holds, lambda: holds.reach("wrapper", "enter")))
    assert "nobody came to it for 24." in last(recorder)["reason"]


def test_threads_that_only_pass_by_do_not_keep_it_alive_for_ever(recorder, clock) -> None:
    clock(busy=True)
    holds = controller(recorder, "t9:step:enter", "t1:wrapper:enter", patience_s=1.0)
    gone = threading.Event()

    def passes_by():
        while not gone.is_set():
            holds.reach("block_mask", "enter")

    def waits():
        holds.reach("wrapper", "enter")
        gone.set()

    join(start(holds, waits, passes_by))
    assert "nobody came to it" in last(recorder)["reason"]


def test_the_cpu_time_of_processes_below_is_seen() -> None:
    """In a process of its own: one without any, and then one with a busy grandchild."""
    program = (
        "import subprocess, sys\n"
        "from harness.child.schedule.helpers import helpers_cpu_s\n"
        "print(helpers_cpu_s())\n"
        "inner = 'while True: pass'\n"
        "outer = f'import subprocess, sys; subprocess.run([sys.executable, \"-c\", {inner!r}])'\n"
        "child = subprocess.Popen([sys.executable, '-c', outer], start_new_session=True)\n"
        "while (helpers_cpu_s() or 0) < 0.5: pass\n"
        "import os, signal; os.killpg(child.pid, signal.SIGKILL); child.wait()\n"
        "print('seen')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    assert ran.stdout.split() == ["None", "seen"]


def test_a_thread_that_has_ended_is_not_waited_for(recorder) -> None:
    holds = controller(recorder, "t2:step:enter", "t1:step:enter", patience_s=1000.0)
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
    holds = controller(recorder, "t1:step:enter", "main:step:enter", patience_s=1000.0)
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
            assert came.wait(20)
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


def test_the_higher_priority_goes_first_and_a_blocked_one_is_passed_by(recorder) -> None:
    """Of two threads that meet at a point one goes; it then waits for the other, which must go."""
    for seed in range(4):
        pct = Priorities(recorder, seed=seed, threads=2, points=10, depth=1, quiet_s=0.2)
        together, other = threading.Barrier(2), {1: threading.Event(), 2: threading.Event()}

        def body(me, them, pct=pct, together=together, other=other):
            pct.reach("phase", "enter")
            together.wait(20)
            pct.reach("step", "enter")
            other[me].set()
            assert other[them].wait(20)

        join(start(pct, lambda body=body: body(1, 2), lambda body=body: body(2, 1)))
        pct.conclude()
        said = last(recorder)
        assert (said["state"], said["arrivals"], said["arrived"]) == ("done", 4, 2)


def test_priorities_order_threads_the_same_way_for_a_seed(recorder) -> None:
    def first_of(seed):
        pct = Priorities(recorder, seed=seed, threads=2, points=10, depth=1, quiet_s=60.0)
        order, here = [], threading.Barrier(2)

        def body(name, turn):
            while len(pct._priority) != turn:
                time.sleep(0.001)  # the order of first arrivals is the program's, not chance's
            with pct._condition:
                pct._count(threading.get_native_id())
            here.wait(20)
            pct._went_on.clear()
            pct.reach("step", "enter")
            order.append(name)

        join(start(pct, lambda: body("t1", 0), lambda: body("t2", 1)))
        return order[0], pct._priority

    firsts = {}
    for seed in range(8):
        first, priority = first_of(seed)
        assert sorted(priority.values()) == [1, 2]
        firsts[seed] = list(priority.values())
        assert first == ("t1" if firsts[seed][0] == 2 else "t2")
    assert len({tuple(p) for p in firsts.values()}) == 2  # both orders occur
    _, priority = first_of(3)
    assert list(priority.values()) == firsts[3]


def test_a_change_point_puts_the_thread_that_makes_it_last(recorder) -> None:
    pct = Priorities(recorder, seed=1, threads=1, points=5, depth=3)
    for _ in range(5):
        pct.reach("step", "enter")
    assert pct._changed == 2
    assert set(pct._priority.values()) <= {1, 2}


def test_delays_are_the_same_for_a_seed_and_never_in_a_guard(recorder, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    runs = []
    for _ in range(2):
        slept.clear()
        chaos = make_scheduler(recorder, {"strategy": "chaos", "seed": 7}, patience_s=1.0)
        for _ in range(20):
            chaos.reach("step", "enter")
            chaos.reach("guard_miss", "enter")
        runs.append(list(slept))
        chaos.conclude()
    assert runs[0] == runs[1]
    assert 0 < len(runs[0]) < 20
    assert all(0 <= delay <= 0.02 for delay in runs[0])
    assert last(recorder)["arrivals"] == 20


def test_no_holds_are_no_controller(recorder) -> None:
    assert make_scheduler(recorder, {"strategy": "holds", "holds": []}, patience_s=1.0) is None
    assert not events(recorder, "schedule")


def kept_apart(recorder, *texts):
    holds = [Hold.parse(text) for text in texts]
    return Controller(recorder, holds, patience_s=5.0, apart=True)


def test_apart_waits_until_a_thread_is_out(recorder) -> None:
    apart = kept_apart(recorder, "t1:fx_trace:exit", "t2:wrapper:enter")
    inside, seen = [], []
    arrived = threading.Event()

    def traces():
        apart.reach("dynamo_compile", "enter")
        inside.append(1)
        apart.reach("fx_trace", "enter")
        assert arrived.wait(20)
        apart.reach("fx_trace", "exit")
        apart.reach("dynamo_compile", "exit")
        inside.clear()
        apart.reach("wrapper", "exit")

    def reads():
        arrived.set()
        apart.reach("wrapper", "enter")
        seen.extend(inside)

    join(start(apart, traces, reads))
    assert last(recorder)["state"] == "done"
    assert not seen


def test_apart_a_thread_that_never_comes_out_leaves_the_next_hold_unreached(
    recorder, clock
) -> None:
    clock(busy=False)
    apart = kept_apart(recorder, "t1:fx_trace:exit", "t2:wrapper:enter")
    go = threading.Event()

    def traces():
        apart.reach("dynamo_compile", "enter")
        apart.reach("fx_trace", "enter")
        apart.reach("fx_trace", "exit")
        go.wait()  # it stays in its compile

    def reads():
        apart.reach("wrapper", "enter")
        go.set()

    join(start(apart, traces, reads))
    said = last(recorder)
    assert (said["state"], said["next"], said["reached"]) == ("not reached", "t2:wrapper:enter", 1)
    assert said["reason"].startswith(
        "t2:wrapper:enter comes once the thread of t1:fx_trace:exit is out of what it is inside of"
    )
    assert "it was still inside after 5." in said["reason"]


def test_apart_a_thread_that_has_to_wait_inside_is_impossible_at_once(recorder) -> None:
    """A plan that keeps threads apart and has one inside while the other passes by."""
    apart = kept_apart(recorder, "t1:fx_trace:enter", "t2:wrapper:enter", "t1:fx_trace:exit")

    def traces():
        apart.reach("fx_trace", "enter")
        apart.reach("fx_trace", "exit")

    began = time.monotonic()
    join(start(apart, traces, lambda: apart.reach("wrapper", "enter")))
    assert time.monotonic() - began < 4  # below the patience
    said = last(recorder)
    assert (said["state"], said["next"]) == ("impossible", "t2:wrapper:enter")
    assert said["reason"].endswith("it waits itself")
