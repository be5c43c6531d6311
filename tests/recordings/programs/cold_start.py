"""Three threads make the first call of one function at once. `fixed`: under one lock."""

import contextlib
import sys
import threading

import torch


@torch.compile(backend="aot_eager", dynamic=True)
def f(x, w):
    for _ in range(6):
        x = torch.sin(x @ w)
    return x.mean()


gate = threading.Barrier(3)
first = threading.Lock() if sys.argv[1:] == ["fixed"] else contextlib.nullcontext()


def loop():
    w = torch.randn(8, 8, requires_grad=True)
    gate.wait()
    with first:
        f(torch.randn(4, 8), w).backward()


threads = [threading.Thread(target=loop, name=f"cold-{i}") for i in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
