"""dynamic=True, warmed at two sizes, and batches of any size in threads."""

import threading

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
compiled = torch.compile(model, backend="aot_eager", dynamic=True)
for size in (3, 5):
    compiled(torch.randn(size, 8)).sum().backward()


def train(sizes):
    for size in sizes:
        compiled(torch.randn(size, 8)).sum().backward()


threads = [threading.Thread(target=train, args=(range(2 + n, 20, 3),)) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
