"""A future fails and nobody asks it."""

from concurrent.futures import ThreadPoolExecutor

import torch


@torch.compile(backend="eager")
def f(x):
    return x.sin()


def work():
    f(torch.randn(4))
    raise ValueError("the shard is empty")


with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
    pool.submit(work)
