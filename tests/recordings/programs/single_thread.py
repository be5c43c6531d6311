"""One thread that compiles at first use, in two grad modes and at two lengths."""

import torch


@torch.compile(backend="aot_eager")
def f(x):
    return torch.tanh(x).sum()


f(torch.randn(8, requires_grad=True)).backward()
with torch.no_grad():
    f(torch.randn(8))
f(torch.randn(9, requires_grad=True)).backward()
