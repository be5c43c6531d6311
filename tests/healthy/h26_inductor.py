"""Inductor's own code and compile workers; four threads call what the main thread compiled."""

import threading

import torch

compiled = torch.compile(lambda x, y: torch.relu(x @ y).sum(-1))
x, y = torch.randn(8, 8), torch.randn(8, 8)
compiled(x, y)


def call():
    for _ in range(10):
        compiled(x, y)


threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
