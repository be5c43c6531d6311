"""A worker thread compiles and trains alone; the main thread only waits."""

import threading

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
compiled = torch.compile(model, backend="aot_eager")


def train():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        compiled(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


thread = threading.Thread(target=train)
thread.start()
thread.join()
