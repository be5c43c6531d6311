"""A thread that both evaluates and trains compiles twice, and another one only evaluates."""

import threading

import torch


@torch.compile(backend="aot_eager", dynamic=False)
def f(x):
    return torch.tanh(x).sum()


def train_and_evaluate():
    with torch.no_grad():
        f(torch.randn(8))
    f(torch.randn(8, requires_grad=True)).backward()


def evaluate():
    with torch.no_grad():
        f(torch.randn(8))


for target in (train_and_evaluate, evaluate):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
