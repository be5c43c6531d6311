"""Two threads run backward under compiled autograd.

``race``: the first is held within the compile of its backward until the second has run its own.
``serial``: the second begins when the first has ended. ``locked``: one lock is around both.
``off``: as ``race``, without compiled autograd in the second.
"""

import contextlib
import sys
import threading

import torch
from torch._dynamo import compiled_autograd

MODE = sys.argv[1]
inside, done = threading.Event(), threading.Event()
lock = threading.Lock() if MODE == "locked" else contextlib.nullcontext()


def held(gm, inputs):
    inside.set()
    if MODE in {"race", "off"}:
        done.wait(60)
    return gm.forward


def compiled(backend):
    # The documented way in is the option of dynamo's config, which compiles the caller as well.
    return compiled_autograd._enable(torch.compile(backend=backend))  # noqa: SLF001


def backward(scope):
    weight = torch.randn(3, requires_grad=True)
    loss = (weight * weight).sum()
    with lock, scope:
        loss.backward()


def train_first():
    backward(compiled(held))


def train_second():
    inside.wait(60)
    try:
        backward(contextlib.nullcontext() if MODE == "off" else compiled("eager"))
    finally:
        done.set()


first = threading.Thread(target=train_first, name="first")
second = threading.Thread(target=train_second, name="second")
first.start()
if MODE == "serial":
    first.join()
second.start()
for thread in (first, second):
    thread.join()
