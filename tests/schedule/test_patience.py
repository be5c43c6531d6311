"""How long a controller waits for a hold that nobody comes to, with real threads."""

import subprocess
import sys
import threading
import time

from harness.child.schedule import controller as controller_module

from .real_threads import controller, join, last, start


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
