"""Warmed under no_grad at two lengths, trained in three threads. `fixed`: warmed with backward."""

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


with torch.set_grad_enabled(fixed):
    for length in (8, 12):
        loss = block(torch.randn(length, 16))
        if fixed:
            loss.backward()
gate = threading.Barrier(3)


def loop():
    gate.wait()
    for length in (16, 20, 24):
        block(torch.randn(length, 16)).backward()


threads = [threading.Thread(target=loop, name=f"drafter-{i}") for i in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
