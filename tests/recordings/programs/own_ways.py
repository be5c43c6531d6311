"""Healthy: each thread runs eager by its own choice, or because there is nothing to compile."""

import threading

import torch
from torch.utils.flop_counter import FlopCounterMode


def counted(x):
    return (x @ x).cos()


def step(x):
    return (x @ x).sin()


def broken(x):
    x = x.sin()
    print(end="")
    return x.cos()


def counts():
    compiled = torch.compile(counted, backend="aot_eager")
    with FlopCounterMode(display=False):
        for _ in range(3):
            compiled(torch.randn(8, 8))


def empty():
    compiled = torch.compile(lambda x: x, backend="aot_eager")
    for _ in range(3):
        compiled(torch.randn(8))


def breaks():
    compiled = torch.compile(broken, backend="aot_eager")
    for _ in range(3):
        compiled(torch.randn(8))


def evaluates():
    compiled = torch.compile(step, backend="aot_eager")
    compiled(torch.randn(8, 8))
    with torch.compiler.set_stance("force_eager"):
        for _ in range(3):
            compiled(torch.randn(8, 8))


for function in (counts, empty, breaks, evaluates):
    thread = threading.Thread(target=function, name=function.__name__)
    thread.start()
    thread.join()
evaluates()
