"""One thread meets new shapes and recompiles, which is nobody else's business."""

import threading

import torch

compiled = torch.compile(torch.nn.Linear(4, 4), backend="aot_eager")


def train():
    for size in (2, 3, 5, 7, 11):
        compiled(torch.randn(size, 4)).sum().backward()


thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
