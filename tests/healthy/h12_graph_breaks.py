"""A function with graph breaks, warmed and then called from a pool."""

from concurrent.futures import ThreadPoolExecutor

import torch


@torch.compile(backend="aot_eager")
def step(x):
    y = x.cos()
    torch._dynamo.graph_break()
    if y.sum() > 1e6:  # a branch on data breaks the graph as well
        y = y * 0
    return y + 1


step(torch.randn(8))
step(torch.randn(8))
with ThreadPoolExecutor(3) as pool:
    list(pool.map(step, [torch.randn(8) for _ in range(12)]))
