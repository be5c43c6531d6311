"""Two threads that train with what the main thread has warmed: ``grad``, ``no_grad`` or ``bare``.

``bare`` is ``no_grad`` without a word on where the warm-up ends.
"""

import sys
import threading

import torch

import harness

WHAT = sys.argv[1]


@torch.compile(backend="eager", dynamic=True)
def loss(weight, x):
    return (x * weight).sin().sum()


weight = torch.ones(1, requires_grad=True)
with torch.enable_grad() if WHAT == "grad" else torch.no_grad():
    for length in (8, 9):
        out = loss(weight, torch.randn(length))
        if WHAT == "grad":
            out.backward()
if WHAT != "bare":
    harness.warmup_done()


def train(length):
    own = torch.ones(1, requires_grad=True)
    for _ in range(2):
        loss(own, torch.randn(length)).backward()


threads = [threading.Thread(target=train, args=(length,)) for length in (10, 11)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
