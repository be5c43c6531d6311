"""Activation checkpointing around a compiled block, in two threads after a warm-up step."""

import threading

import torch
from torch.utils.checkpoint import checkpoint

block = torch.compile(
    torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), backend="aot_eager"
)


def train():
    for _ in range(3):
        x = torch.randn(2, 8, requires_grad=True)
        checkpoint(block, x, use_reentrant=False).sum().backward()


train()
threads = [threading.Thread(target=train) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
