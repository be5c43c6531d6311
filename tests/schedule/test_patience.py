"""How long a controller waits for a hold that nobody comes to, with real threads."""

import subprocess
import sys
import threading

from harness.child.schedule import controller as controller_module
from harness.child.schedule.cpu_time import thread_cpu_s

from .real_threads import LIMIT_S, controller, join, last, start


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
    now = clock(busy=True, until=6.0)
    holds = controller(recorder, "t2:step:enter", "t1:wrapper:enter", patience_s=2.0)

    def computes():
        assert now.stopped.wait(LIMIT_S)
        holds.reach("step", "enter")

    join(start(holds, lambda: holds.reach("wrapper", "enter"), computes))
    assert last(recorder)["state"] == "done"


def test_a_process_whose_workers_are_busy_is_waited_for_longer(
    recorder, clock, monkeypatch
) -> None:
    now = clock(busy=False, until=6.0)
    monkeypatch.setattr(controller_module, "helpers_cpu_s", lambda: now.now)
    holds = controller(recorder, "t2:step:enter", "t1:wrapper:enter", patience_s=2.0)

    def sleeps():
        assert now.stopped.wait(LIMIT_S)
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


def test_a_thread_that_has_not_run_since_its_hold_is_waited_for(
    recorder, clock, monkeypatch
) -> None:
    now, used = clock(busy=True), [0.0]

    def cpu_s(tid):
        if now.until > 1000:  # asked for first when the hold is passed
            now.until = now.now + 0.1  # the head start is over, the longest is not
        return used[0]

    monkeypatch.setattr(controller_module, "thread_cpu_s", cpu_s)
    holds = controller(recorder, "t1:step:enter", "t2:step:enter")
    go, order = threading.Event(), []

    def kept_from_running():
        holds.reach("step", "enter")
        assert go.wait(LIMIT_S)

    def follows():
        holds.reach("step", "enter")
        order.append("t2")
        go.set()

    threads = start(holds, kept_from_running, follows)
    assert now.stopped.wait(LIMIT_S)
    looked = now.looks
    while now.looks < looked + 20:
        assert not order
    used[0] = 1.0
    join(threads)
    assert last(recorder)["state"] == "done"


def test_the_cpu_time_of_a_thread_is_seen() -> None:
    tid = threading.get_native_id()
    before = thread_cpu_s(tid)
    assert before is not None
    while thread_cpu_s(tid) < before + 0.05:
        pass
    assert thread_cpu_s(0) is None


def test_the_cpu_time_of_processes_below_is_seen() -> None:
    """In a process of its own: one without any, and then one with a busy grandchild."""
    program = (
        "import subprocess, sys\n"
        "from harness.child.schedule.cpu_time import helpers_cpu_s\n"
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
