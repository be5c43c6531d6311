"""A thread that copies batches ahead, as a pin-memory thread does, beside a compiled trainer."""

import queue
import threading

import torch

ahead = queue.Queue(2)


def copy_ahead():
    for _ in range(10):
        batch = torch.randn(4, 8)
        ahead.put(batch.clone().contiguous())
    ahead.put(None)


threading.Thread(target=copy_ahead, daemon=True).start()
compiled = torch.compile(torch.nn.Linear(8, 8), backend="aot_eager")
while (batch := ahead.get()) is not None:
    compiled(batch).sum().backward()
