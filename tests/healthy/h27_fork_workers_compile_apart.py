"""Spawned processes compile for themselves, each in its main thread."""

import torch
import torch.multiprocessing as multiprocessing


def work(rank):
    compiled = torch.compile(torch.nn.Linear(4, 4), backend="aot_eager")
    for _ in range(3):
        compiled(torch.randn(2, 4)).sum().backward()
    print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    multiprocessing.spawn(work, nprocs=2)
