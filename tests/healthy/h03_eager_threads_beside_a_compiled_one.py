"""Only the main thread calls compiled code; the others run the same layers uncompiled."""

import threading

import torch

layer = torch.nn.Linear(16, 16)
compiled = torch.compile(layer, backend="aot_eager")
stop = threading.Event()


def evaluate():
    while not stop.is_set():
        with torch.no_grad():
            layer(torch.randn(2, 16))


threads = [threading.Thread(target=evaluate) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(10):
    compiled(torch.randn(2, 16)).sum().backward()
stop.set()
for thread in threads:
    thread.join()
