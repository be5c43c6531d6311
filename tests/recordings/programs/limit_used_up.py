"""Two threads in turn: the first uses up the recompile limit, the second runs eager."""

import sys
import threading

import torch

options = {"recompile_limit": 64} if "fixed" in sys.argv else {}


@torch.compile(backend="aot_eager", dynamic=False, **options)
def step(x):
    return torch.tanh(x).sum()


step(torch.randn(2))


def train(lengths):
    for length in lengths:
        step(torch.randn(length))


for name, lengths in (("long", range(3, 13)), ("short", range(20, 24))):
    thread = threading.Thread(target=train, args=(lengths,), name=name)
    thread.start()
    thread.join()
