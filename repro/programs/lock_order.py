"""A custom backend takes a lock of the program's; another thread compiles while it holds that lock.

``crossed``: the first waits within its compile until the second has the lock, and the second
compiles once the first is within its compile: on every run each then waits for the other.
``serial``: the second begins when the first has ended. ``outside``: the second makes its first
call before it takes the lock, and the backend takes none.
"""

import sys
import threading

import torch

MODE = sys.argv[1]
registry = threading.Lock()
inside, held = threading.Event(), threading.Event()
sizes = []


def counting(gm, inputs):
    if MODE == "outside":
        sizes.append(len(inputs))
        return gm.forward
    inside.set()
    if MODE == "crossed":
        held.wait(60)
    with registry:
        sizes.append(len(inputs))
    return gm.forward


first = torch.compile(lambda x: x.sin(), backend=counting)
second = torch.compile(lambda x: x.cos(), backend="eager")


def train():
    first(torch.randn(3))


def serve():
    if MODE == "outside":
        second(torch.randn(3))
    with registry:
        held.set()
        if MODE == "crossed":
            inside.wait(60)
        second(torch.randn(3))


trainer = threading.Thread(target=train, name="trainer")
server = threading.Thread(target=serve, name="server")
trainer.start()
if MODE == "serial":
    trainer.join()
server.start()
for thread in (trainer, server):
    thread.join()
