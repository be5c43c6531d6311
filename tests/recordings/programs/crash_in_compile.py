"""A segmentation fault inside a backend, in a thread."""

import ctypes
import threading

import torch


def backend(gm, inputs):
    ctypes.string_at(0)


f = torch.compile(lambda x: x.sin(), backend=backend)
thread = threading.Thread(target=lambda: f(torch.randn(4)), name="worker")
thread.start()
thread.join()
