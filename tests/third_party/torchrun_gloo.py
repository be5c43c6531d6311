"""Data-parallel training of a compiled model over gloo; to be started by torchrun."""

import os

import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(rank)
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
compiled = torch.compile(model, backend="aot_eager")
for _ in range(3):
    compiled(torch.randn(2, 4)).sum().backward()
total = torch.tensor([float(rank + 1)])
distributed.all_reduce(total)
if rank == 0:
    print(f"world {os.environ['WORLD_SIZE']} total {total.item():.0f}", flush=True)
distributed.barrier()
distributed.destroy_process_group()
