"""One dynamic entry, made before the threads start, serves every shape that they use."""

import threading

import torch

SIZES = (4, 8, 16, 32)
score = torch.compile(lambda x: (x @ x.T).softmax(-1).sum(), backend="aot_eager", dynamic=True)
for size in SIZES:
    score(torch.randn(size, 8))


def serve():
    for size in SIZES * 3:
        score(torch.randn(size, 8))


threads = [threading.Thread(target=serve) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
