"""The optimizer's step is compiled; one training thread and a progress thread."""

import threading

import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), capturable=False)
step = torch.compile(optimizer.step, backend="aot_eager")
seen, done = [], threading.Event()


def progress():
    while not done.wait(0.01):
        seen.append(len(seen))


shows = threading.Thread(target=progress, daemon=True)
shows.start()
for _ in range(4):
    model(torch.randn(4, 8)).square().mean().backward()
    step()
    optimizer.zero_grad()
done.set()
shows.join()
