"""Warmed at one length; two threads meet another at once. `fixed`: warmed at two."""

import sys
import threading

import torch

fixed = sys.argv[1:] == ["fixed"]
weight = torch.randn(16, 16, requires_grad=True)


@torch.compile(backend="aot_eager")
def block(x):
    for _ in range(4):
        x = torch.tanh(x @ weight)
    return x.sum()


for length in (8, 12) if fixed else (8,):
    block(torch.randn(length, 16)).backward()
gate = threading.Barrier(2)


def loop():
    gate.wait()
    for length in (16, 20):
        block(torch.randn(length, 16)).backward()


threads = [threading.Thread(target=loop, name=f"drafter-{i}") for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
