"""A progress thread that runs all the time and formats tensors, as progress bars do."""

import threading

import torch

losses, done = [torch.tensor(0.0)], threading.Event()


def show():
    while not done.wait(0.005):
        f"{losses[-1].item():.3f} {torch.stack(losses[-3:]).mean():.3f}"


bar = threading.Thread(target=show, name="tqdm-monitor", daemon=True)
bar.start()
compiled = torch.compile(torch.nn.Linear(8, 1), backend="aot_eager")
for _ in range(10):
    loss = compiled(torch.randn(4, 8)).square().mean()
    loss.backward()
    losses.append(loss.detach())
done.set()
bar.join()
