"""Evaluation threads use no_grad, and so did the warm-up."""

import threading

import torch

model = torch.nn.Linear(8, 8)
compiled = torch.compile(model, backend="aot_eager")


@torch.no_grad()
def evaluate(batches):
    for batch in batches:
        compiled(batch)


evaluate([torch.randn(4, 8)])
data = [[torch.randn(4, 8) for _ in range(6)] for _ in range(3)]
threads = [threading.Thread(target=evaluate, args=(part,)) for part in data]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
