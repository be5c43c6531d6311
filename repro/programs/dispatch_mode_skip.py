"""One thread counts the FLOPs of a compiled function; another calls it before and afterwards.

``compiled``: it counts those of the compiled function. ``plain``: of the plain one. ``alone``: of
the compiled one, and no other thread calls it.
"""

import sys
import threading

import torch
from torch.utils.flop_counter import FlopCounterMode

MODE = sys.argv[1]
warm, counted = threading.Event(), threading.Event()


def step(x):
    return (x @ x).sin()


compiled = torch.compile(step, backend="aot_eager", dynamic=False)
compiled(torch.randn(8, 8))


def train():
    if MODE != "alone":
        compiled(torch.randn(8, 8))
    warm.set()
    counted.wait(60)
    for _ in range(4 if MODE != "alone" else 0):
        compiled(torch.randn(8, 8))


def count():
    warm.wait(60)
    with FlopCounterMode(display=False):
        for _ in range(3):
            (step if MODE == "plain" else compiled)(torch.randn(8, 8))
    counted.set()


threads = [
    threading.Thread(target=train, name="train"),
    threading.Thread(target=count, name="count"),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
