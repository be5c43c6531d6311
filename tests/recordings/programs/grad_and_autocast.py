"""Warmed under no_grad and under autocast, called in a thread that has neither."""

import threading

import torch

weight = torch.randn(16, 16, requires_grad=True)


@torch.compile(backend="aot_eager", dynamic=True)
def block(x):
    return torch.tanh(x @ weight).sum()


with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    for length in (8, 12):
        block(torch.randn(length, 16))
thread = threading.Thread(target=lambda: block(torch.randn(16, 16)).backward(), name="trainer")
thread.start()
thread.join()
