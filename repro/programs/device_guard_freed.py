"""A thread makes the first compile of the process and ends; the main thread compiles next.

On a CUDA build of torch 2.10 or 2.11 that sees no GPU, the first compile leaves a device guard
behind that is freed with its thread, and the next compile calls it. ``ended``: it crashes.
``living``: the first thread waits until the main one has compiled. ``warmed``: the main thread has
compiled something small before.

To the system a thread still exists for a moment after Python has joined it, and the guard with it;
unless ``MODE`` keeps it alive, the main thread waits until it is gone.
"""

import sys
import threading
import time
from pathlib import Path

import torch

MODE = sys.argv[1] if len(sys.argv) > 1 else "ended"
compiled, over = threading.Event(), threading.Event()


def first(x):
    return x.sin()


def second(x):
    return x.cos()


def gone(thread):
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.001)


def work():
    torch.compile(first, backend="eager")(torch.ones(3))
    compiled.set()
    if MODE == "living":
        over.wait(60)


if MODE == "warmed":
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
worker = threading.Thread(target=work, name="worker")
worker.start()
if MODE == "living":
    compiled.wait(60)
else:
    gone(worker)
torch.compile(second, backend="eager")(torch.ones(3))
over.set()
worker.join()
print(torch.__version__, MODE, "both compiled")
