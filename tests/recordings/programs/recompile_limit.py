"""The limit is set in main, and a worker sees many static shapes. `fixed`: given to compile."""

import sys
import threading

import torch

fixed = sys.argv[1:] == ["fixed"]
torch._dynamo.config.recompile_limit = 64
limit = {"recompile_limit": 64} if fixed else {}


@torch.compile(backend="eager", dynamic=False, **limit)
def f(x):
    return torch.tanh(x).sum()


f(torch.randn(2))


def loop():
    for length in range(3, 20):
        f(torch.randn(length))


thread = threading.Thread(target=loop, name="many-shapes")
thread.start()
thread.join()
