"""A thread calls compiled code while another is inside an FX trace.

``race``: the trace is held inside the traced module until the call has returned or raised, so the
two overlap on every run. ``locked``: the call comes in the middle of the trace as well, but one
lock is around both. ``serial``: the call comes after the trace.
"""

import contextlib
import sys
import threading

import torch
import torch.fx

MODE = sys.argv[1]
tracing, called = threading.Event(), threading.Event()
lock = threading.RLock() if MODE == "locked" else contextlib.nullcontext()


class Held(torch.nn.Module):
    """Waits in the middle of its own trace."""

    def forward(self, x):
        y = torch.sin(x)
        tracing.set()
        if MODE == "race":
            called.wait(60)
        return y + 1


fast = torch.compile(lambda x: x.sin().cos(), backend="eager")
fast(torch.randn(8))


def trace():
    with lock:
        torch.fx.symbolic_trace(Held())


def call():
    tracing.wait(60)
    try:
        with lock:
            fast(torch.randn(8))
    finally:
        called.set()


first = threading.Thread(target=trace, name="quantise")
first.start()
if MODE == "serial":
    first.join()
second = threading.Thread(target=call, name="serve")
second.start()
for thread in (first, second):
    thread.join()
