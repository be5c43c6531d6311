"""A thread calls compiled code while another is inside an FX trace: ``race``, or ``serial``.

The trace is held inside the traced module until the call has returned or raised, so the two
overlap on every run.
"""

import sys
import threading

import torch
import torch.fx

RACE = sys.argv[1] == "race"
tracing, called = threading.Event(), threading.Event()


class Held(torch.nn.Module):
    """Waits in the middle of its own trace."""

    def forward(self, x):
        y = torch.sin(x)
        tracing.set()
        if RACE:
            called.wait(60)
        return y + 1


fast = torch.compile(lambda x: x.sin().cos(), backend="eager")
fast(torch.randn(8))


def trace():
    torch.fx.symbolic_trace(Held())


def call():
    tracing.wait(60)
    try:
        fast(torch.randn(8))
    finally:
        called.set()


first = threading.Thread(target=trace, name="quantise")
first.start()
if not RACE:
    first.join()
second = threading.Thread(target=call, name="serve")
second.start()
for thread in (first, second):
    thread.join()
