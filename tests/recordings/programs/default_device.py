"""A default device set in main, which is a mode of main's. `fixed`: set in the threads as well."""

import sys
import threading

import torch

fixed = sys.argv[1:] == ["fixed"]
torch.set_default_device("cpu")


@torch.compile(backend="aot_eager", dynamic=True)
def f(x):
    return torch.sin(x) + torch.ones(x.shape[0]).sum()


for length in (8, 12):
    f(torch.randn(length))


def loop():
    if fixed:
        torch.set_default_device("cpu")
    for length in (16, 20):
        f(torch.randn(length, device="cpu"))


threads = [threading.Thread(target=loop, name=f"worker-{i}") for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
