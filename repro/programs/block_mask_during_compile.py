"""A thread builds a block mask while another compiles: ``race``, or ``serial`` after it.

The compile is held inside its backend until the block mask was built (or had failed), so the two
overlap on every run; nothing depends on timing.
"""

import sys
import threading

import torch
from torch.nn.attention.flex_attention import create_block_mask

RACE = sys.argv[1] == "race"
compiling, built = threading.Event(), threading.Event()


def held_backend(graph, inputs):
    compiling.set()
    if RACE:
        built.wait(60)
    return graph.forward


def compile_something():
    torch.compile(lambda x: x.sin() + x.cos(), backend=held_backend)(torch.randn(8))


def build_mask():
    compiling.wait(60)
    try:
        create_block_mask(lambda b, h, q, kv: q >= kv, 1, 1, 256, 256, device="cpu")
    finally:
        built.set()


import torch._dynamo  # noqa: E402 - the lazy import is a race of its own; not the one shown here
import torch._inductor.compile_fx  # noqa: E402

first = threading.Thread(target=compile_something, name="compiler")
first.start()
if not RACE:
    first.join()
second = threading.Thread(target=build_mask, name="mask-builder")
second.start()
for thread in (first, second):
    thread.join()
