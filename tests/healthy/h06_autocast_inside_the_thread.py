"""Each thread enters autocast itself, as the warm-up did."""

import threading

import torch

model = torch.nn.Linear(16, 16)
compiled = torch.compile(model, backend="aot_eager")


def step():
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = compiled(torch.randn(4, 16)).float().mean()
        loss.backward()


step()
threads = [threading.Thread(target=step) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
