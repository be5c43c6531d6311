"""A future fails, is asked, and the program deals with it."""

from concurrent.futures import ThreadPoolExecutor

import torch


@torch.compile(backend="eager")
def f(x):
    return x.sin()


def work():
    f(torch.randn(4))
    raise ValueError("the shard is empty")


with ThreadPoolExecutor(1) as pool:
    assert isinstance(pool.submit(work).exception(), ValueError)
