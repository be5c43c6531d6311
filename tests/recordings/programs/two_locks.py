"""Two threads take two locks of the program's in opposite order; nothing of torch's is in it."""

import threading

import torch

weights, optimizer = threading.Lock(), threading.Lock()
both = threading.Barrier(2)
step = torch.compile(lambda x: x.sin(), backend="eager")
step(torch.randn(4))


def saver():
    with weights:
        both.wait()
        with optimizer:
            step(torch.randn(4))


def trainer():
    with optimizer:
        both.wait()
        with weights:
            step(torch.randn(4))


threads = [threading.Thread(target=f, name=f.__name__) for f in (saver, trainer)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
