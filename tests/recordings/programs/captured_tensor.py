"""A function closes over a tensor whose size varies, in two threads. `fixed`: a fixed size."""

import sys
import threading

import torch

fixed = sys.argv[1:] == ["fixed"]


def scale_by(anchors):
    def scale(x):
        return x * anchors.sum()

    return scale


@torch.compile(backend="eager", dynamic=False)
def f(x, scale):
    return scale(x).sum()


f(torch.randn(8), scale_by(torch.ones(4)))
gate = threading.Barrier(2)


def loop():
    gate.wait()
    for _ in range(2):
        f(torch.randn(8), scale_by(torch.ones(4 if fixed else 7)))
        gate.wait()


threads = [threading.Thread(target=loop, name=f"drafter-{i}") for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
