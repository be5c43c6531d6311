"""A new shape in the one thread that calls the code by then: no fault."""

import threading

import torch


@torch.compile(backend="eager", dynamic=False)
def f(x):
    return torch.tanh(x).sum()


f(torch.randn(8))
thread = threading.Thread(target=lambda: f(torch.randn(9)), name="later")
thread.start()
thread.join()
