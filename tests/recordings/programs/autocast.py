"""Autocast around the program in main. `fixed`: entered in each thread's function instead."""

import contextlib
import sys
import threading

import torch

fixed = sys.argv[1:] == ["fixed"]
weight = torch.randn(16, 16, requires_grad=True)


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@torch.compile(backend="aot_eager", dynamic=True)
def block(x):
    return torch.relu(x @ weight).sum()


def loop():
    with autocast() if fixed else contextlib.nullcontext():
        for length in (24, 40):
            block(torch.randn(length, 16)).backward()


with autocast():
    for length in (8, 12):
        block(torch.randn(length, 16)).backward()
    threads = [threading.Thread(target=loop, name=f"trainer-{i}") for i in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
