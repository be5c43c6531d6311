"""Each thread makes, compiles and uses a function of its own: no code object is shared."""

import threading

import torch


def first(x):
    return x.sin() + 1


def second(x):
    return x.cos() - 1


def work(function, before, after):
    before.wait()
    compiled = torch.compile(function, backend="aot_eager")
    for _ in range(5):
        compiled(torch.randn(4))
    after.set()


ready, between, done = threading.Event(), threading.Event(), threading.Event()
threads = [
    threading.Thread(target=work, args=(first, ready, between)),
    threading.Thread(target=work, args=(second, between, done)),
]
for thread in threads:
    thread.start()
ready.set()
for thread in threads:
    thread.join()
