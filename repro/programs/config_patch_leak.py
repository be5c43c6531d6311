"""Two threads call functions compiled with ``dynamic=True``, one inside the other's call.

``race``: the second call begins inside the first one's and compiles after that has ended. On torch
up to 2.11 it then compiles for static sizes. ``serial``: one call after the other. ``fixed``: the
dimensions are marked on the tensors, and the option is left out.
"""

import sys
import threading

import torch
from torch._dynamo import mark_dynamic

MODE = sys.argv[1]
OPTIONS = {} if MODE == "fixed" else {"dynamic": True}
first_inside, second_inside, first_left = (threading.Event() for _ in range(3))
gates = {
    "first": lambda: (first_inside.set(), second_inside.wait(60)),
    "second": lambda: (second_inside.set(), first_left.wait(60)),
}


@torch.compiler.disable
def pause():
    gate = gates.get(threading.current_thread().name)
    if gate is not None and MODE != "serial":
        gate()


def work(x):
    x = x.sin()
    pause()
    return x.cos()  # dynamo compiles the rest of the frame when it comes here


def other(x):
    x = x.tan()
    pause()
    return x.tanh()


def batch(length):
    x = torch.randn(length)
    if MODE == "fixed":
        mark_dynamic(x, 0)
    return x


warmed = torch.compile(work, backend="eager", **OPTIONS)
cold = torch.compile(other, backend="eager", **OPTIONS)
warmed(batch(8))


def first():
    warmed(batch(9))
    first_left.set()


def second():
    first_inside.wait(60)
    cold(batch(8))


threads = [threading.Thread(target=target, name=target.__name__) for target in (first, second)]
for thread in threads:
    thread.start()
    if MODE == "serial":
        first_inside.set()
        thread.join()
for thread in threads:
    thread.join()
