"""torch.compiler.disable on a part, and a stance set and unset while one thread works."""

import torch


@torch.compiler.disable
def log_it(x):
    return float(x.mean())


@torch.compile(backend="aot_eager")
def step(x):
    y = x.relu()
    log_it(y)
    return y.sum()


for _ in range(3):
    step(torch.randn(6, requires_grad=True)).backward()
with torch.compiler.set_stance("force_eager"):
    step(torch.randn(6, requires_grad=True)).backward()
step(torch.randn(6, requires_grad=True)).backward()
