"""The blocks of a model are compiled one by one, and share one code object."""

import threading

import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + self.mix(x).relu()


model = torch.nn.Sequential(*(Block() for _ in range(3)))
for block in model:
    block.compile(backend="aot_eager")


def train():
    for _ in range(4):
        # All blocks' inputs require gradients, so that one entry serves them all.
        model(torch.randn(2, 8, requires_grad=True)).sum().backward()


train()


threads = [threading.Thread(target=train) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
