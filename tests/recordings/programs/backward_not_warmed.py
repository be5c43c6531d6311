"""The warm-up calls no backward. `fixed`: it does."""

import sys
import threading

import torch

fixed = sys.argv[1:] == ["fixed"]
weight = torch.randn(16, 16, requires_grad=True)


@torch.compile(backend="aot_eager", dynamic=False)
def block(x):
    return torch.tanh(x @ weight).sum()


loss = block(torch.randn(8, 16))
if fixed:
    loss.backward()


def loop():
    block(torch.randn(8, 16)).backward()


threads = [threading.Thread(target=loop, name=f"trainer-{i}") for i in range(2)]
for thread in threads:
    thread.start()
    thread.join()
