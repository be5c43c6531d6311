"""Holds that keep threads apart: one goes on once the other is out, with real threads."""

import re
import threading

from harness.child.schedule.controller import Controller
from harness.child.schedule.order import Hold

from .real_threads import LIMIT_S, join, last, start


def kept_apart(recorder, *texts, patience_s=1000.0):
    holds = [Hold.parse(text) for text in texts]
    return Controller(recorder, holds, patience_s=patience_s, apart=True)


def test_apart_waits_until_a_thread_is_out(recorder) -> None:
    apart = kept_apart(recorder, "t1:fx_trace:exit", "t2:wrapper:enter")
    inside, seen = [], []
    arrived = threading.Event()

    def traces():
        apart.reach("dynamo_compile", "enter")
        inside.append(1)
        apart.reach("fx_trace", "enter")
        assert arrived.wait(LIMIT_S)
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
    apart = kept_apart(recorder, "t1:fx_trace:exit", "t2:wrapper:enter", patience_s=5.0)
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
    still_s = re.search(r"it was still inside after (\S+) s", said["reason"])
    assert still_s is not None
    # The patience is counted from the arrival at the hold, this from its passing, a tick later.
    assert 4.9 <= float(still_s[1]) < 6


def test_apart_a_thread_that_has_to_wait_inside_is_impossible_at_once(recorder) -> None:
    """A plan that keeps threads apart and has one inside while the other passes by."""
    apart = kept_apart(recorder, "t1:fx_trace:enter", "t2:wrapper:enter", "t1:fx_trace:exit")

    def traces():
        apart.reach("fx_trace", "enter")
        apart.reach("fx_trace", "exit")

    join(start(apart, traces, lambda: apart.reach("wrapper", "enter")))
    said = last(recorder)
    assert (said["state"], said["next"]) == ("impossible", "t2:wrapper:enter")
    assert said["reason"].endswith("it waits itself")
