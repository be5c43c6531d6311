"""Warmed in inference mode, trained in two threads. `fixed`: warmed outside of it."""

import contextlib
import sys
import threading

import torch

fixed = sys.argv[1:] == ["fixed"]
weight = torch.randn(16, 16, requires_grad=True)


@torch.compile(backend="aot_eager", dynamic=True)
def block(x):
    for _ in range(4):
        x = torch.tanh(x @ weight)
    return x.sum()


with contextlib.nullcontext() if fixed else torch.inference_mode():
    for length in (8, 12):
        loss = block(torch.randn(length, 16))
        if fixed:
            loss.backward()
gate = threading.Barrier(2)


def loop():
    gate.wait()
    for length in (16, 20):
        block(torch.randn(length, 16)).backward()


threads = [threading.Thread(target=loop, name=f"trainer-{i}") for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
