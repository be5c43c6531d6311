"""Priorities and delays, the strategies without holds, with real threads."""

import threading
import time
from types import SimpleNamespace

from harness.child.schedule import delays
from harness.child.schedule.make import make_scheduler
from harness.child.schedule.priorities import Priorities

from .real_threads import LIMIT_S, join, last, start


def test_the_higher_priority_goes_first_and_a_blocked_one_is_passed_by(recorder) -> None:
    """Of two threads that meet at a point one goes; it then waits for the other, which must go."""
    for seed in range(4):
        pct = Priorities(recorder, seed=seed, threads=2, points=10, depth=1, quiet_s=0.2)
        together, other = threading.Barrier(2), {1: threading.Event(), 2: threading.Event()}

        def body(me, them, pct=pct, together=together, other=other):
            pct.reach("phase", "enter")
            together.wait(LIMIT_S)
            pct.reach("step", "enter")
            other[me].set()
            assert other[them].wait(LIMIT_S)

        join(start(pct, lambda body=body: body(1, 2), lambda body=body: body(2, 1)))
        pct.conclude()
        said = last(recorder)
        assert (said["state"], said["arrivals"], said["arrived"]) == ("done", 4, 2)


def test_priorities_order_threads_the_same_way_for_a_seed(recorder) -> None:
    def first_of(seed):
        numbers = {"threads": 2, "points": 10, "depth": 1}
        pct = Priorities(recorder, seed=seed, **numbers, quiet_s=1000.0, longest_s=1000.0)
        order, here = [], threading.Barrier(2)

        def body(name, turn):
            while len(pct._priority) != turn:
                time.sleep(0.001)  # the order of first arrivals is the program's, not chance's
            with pct._condition:
                pct._count(threading.get_native_id())
            here.wait(LIMIT_S)
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
    # Not time's own: threads that other tests left behind may sleep as well.
    monkeypatch.setattr(delays, "time", SimpleNamespace(sleep=slept.append))
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
