"""A thread counts the FLOPs of a compiled function, or (``fixed``) the plain one; main goes on."""

import sys
import threading

import torch
from torch.utils.flop_counter import FlopCounterMode


def step(x):
    return (x @ x).sin()


compiled = torch.compile(step, backend="aot_eager", dynamic=False)
compiled(torch.randn(8, 8))


def count():
    with FlopCounterMode(display=False):
        for _ in range(3):
            (step if "fixed" in sys.argv else compiled)(torch.randn(8, 8))


thread = threading.Thread(target=count, name="count")
thread.start()
thread.join()
for _ in range(4):
    compiled(torch.randn(8, 8))
