"""Two threads trace with FX: the first to begin is the first to end.

``race``: each trace waits in its middle for the other, so they cross on every run. ``locked``: one
lock is around both. ``serial``: the second begins after the first.
"""

import contextlib
import sys
import threading

import torch
import torch.fx

MODE = sys.argv[1]
first_inside, second_inside, first_out = (threading.Event() for _ in range(3))
lock = threading.RLock() if MODE == "locked" else contextlib.nullcontext()
fast = torch.compile(lambda x: x.sin().cos(), backend="eager")
fast(torch.randn(8))


def traced_first(x):
    y = x.sin()
    first_inside.set()
    if MODE == "race":
        second_inside.wait(60)
    return y + 1


def traced_second(x):
    y = x.cos()
    second_inside.set()
    if MODE == "race":
        first_out.wait(60)
    return y + 1


def trace_first():
    with lock:
        torch.fx.symbolic_trace(traced_first)
    first_out.set()


def trace_second():
    first_inside.wait(60)
    with lock:
        torch.fx.symbolic_trace(traced_second)


first = threading.Thread(target=trace_first, name="quantise")
first.start()
if MODE == "serial":
    first.join()
second = threading.Thread(target=trace_second, name="export")
second.start()
for thread in (first, second):
    thread.join()
