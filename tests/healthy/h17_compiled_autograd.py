"""Compiled autograd in the main thread while another thread only prepares batches."""

import queue
import threading

import torch

model = torch.nn.Linear(4, 4)
batches = queue.Queue(2)


def prepare():
    for _ in range(4):
        batches.put(torch.randn(2, 4))
    batches.put(None)


feeder = threading.Thread(target=prepare)
feeder.start()
compiled = torch.compile(model, backend="aot_eager")
with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
    while (batch := batches.get()) is not None:
        compiled(batch).sum().backward()
feeder.join()
