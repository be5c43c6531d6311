"""Two threads call functions compiled with ``fullgraph=True``, all warmed up.

``race``: they meet in such a way that torch's count of compiled frames, which is one for the
process, is switched off under one call and set to 0 by another before that one has read it.
``serial``: the same calls, one after the other. ``fixed``: they meet so, without ``fullgraph``.
"""

import contextlib
import sys
import threading

import torch
from torch._dynamo import optimize

MODE = sys.argv[1]
leaving, running, again, done = (threading.Event() for _ in range(4))
calls = {"short": 0}


@contextlib.contextmanager
def around():
    """Entered by each call before its function, and left after it has read the count."""
    meets = MODE != "serial" and threading.current_thread().name == "short"
    calls["short"] += meets
    if meets and calls["short"] == 2:
        again.set()
        done.wait(60)
    yield
    if meets and calls["short"] == 1:
        leaving.set()
        running.wait(60)


def short_backend(graph, inputs):
    return graph.forward


short_backend.backend_ctx_ctor = around


def long_backend(graph, inputs):
    def run(*tensors):
        if MODE != "serial" and threading.current_thread().name == "long":
            running.set()
            again.wait(60)
        return graph.forward(*tensors)

    return run


FULL = MODE != "fixed"
fast = optimize(short_backend, nopython=FULL)(lambda x: x.sin() + 1)
slow = torch.compile(lambda x: x.cos() + 1, backend=long_backend, fullgraph=FULL)
x = torch.randn(8)
fast(x)
slow(x)


def short():
    fast(x)
    fast(x)


def long():
    if MODE != "serial":
        leaving.wait(60)
    try:
        slow(x)
    finally:
        done.set()


threads = [threading.Thread(target=target, name=target.__name__) for target in (short, long)]
for thread in threads:
    thread.start()
    if MODE == "serial":
        thread.join()
for thread in threads:
    thread.join()
