"""torch.export in the main thread, and the exported program called from a pool."""

from concurrent.futures import ThreadPoolExecutor

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(x).relu()


exported = torch.export.export(Net(), (torch.randn(2, 6),)).module()
compiled = torch.compile(Net(), backend="aot_eager")
compiled(torch.randn(2, 6))
with ThreadPoolExecutor(3) as pool:
    list(pool.map(exported, [torch.randn(2, 6) for _ in range(12)]))
