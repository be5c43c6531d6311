"""A user's ValueError below compile_wrapper, in a thread."""

import threading

import torch


def check(x):
    raise ValueError("labels must not be empty")


@torch.compile(backend="eager")
def f(x):
    y = x.sin()
    torch._dynamo.graph_break()
    check(y)
    return y


thread = threading.Thread(target=lambda: f(torch.randn(4)), name="trainer")
thread.start()
thread.join()
