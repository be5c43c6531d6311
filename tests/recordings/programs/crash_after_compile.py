"""A thread compiles and ends; then the main one dies of SIGSEGV in native code of its own."""

import ctypes
import threading

import torch


def step(x):
    return x.sin()


worker = threading.Thread(target=torch.compile(step, backend="eager"), args=(torch.ones(3),))
worker.start()
worker.join()
ctypes.string_at(0)
