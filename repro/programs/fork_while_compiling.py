"""A worker process is forked while a thread of its parent compiles, and compiles something itself.

``fork``: the thread waits within its compile until the process is forked. ``serial``: the process
is forked after the compile. ``spawn``: it is started anew instead, while the thread compiles. A
forked worker that is about to compile has two seconds to do so; then the parent ends it.
"""

import multiprocessing
import sys
import threading

import torch

MODE = sys.argv[1] if len(sys.argv) > 1 else "serial"
inside, forked = threading.Event(), threading.Event()


def held(gm, inputs):
    inside.set()
    if MODE != "serial":
        forked.wait(60)
    return gm.forward


def work(about_to):
    step, x = torch.compile(lambda x: x.cos(), backend="eager"), torch.randn(3)
    about_to.set()
    step(x)


if __name__ == "__main__":
    step = torch.compile(lambda x: x.sin(), backend=held)
    trainer = threading.Thread(target=step, args=(torch.randn(3),), name="trainer")
    trainer.start()
    inside.wait(60)
    if MODE == "serial":
        trainer.join()
    context = multiprocessing.get_context("spawn" if MODE == "spawn" else "fork")
    about_to = context.Event()
    worker = context.Process(target=work, args=(about_to,), name="worker", daemon=True)
    worker.start()
    forked.set()
    trainer.join()
    about_to.wait(60)
    worker.join(2 if MODE == "fork" else None)
    if worker.is_alive():
        worker.terminate()
        worker.join()
