"""A DataLoader whose workers are forked before anything is compiled."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
model = torch.nn.Linear(8, 1)
compiled = torch.compile(model, backend="aot_eager")
for _ in range(2):
    for x, y in DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork"):
        (compiled(x) - y).square().mean().backward()
