"""A compiled function calls another; threads call both after a warm-up of both."""

import threading

import torch

inner = torch.compile(lambda x: x.sin() * 2, backend="aot_eager")
outer = torch.compile(lambda x: inner(x) + 1, backend="aot_eager")
x = torch.randn(8)
inner(x)
outer(x)


def call():
    for _ in range(5):
        inner(x)
        outer(x)


threads = [threading.Thread(target=call) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
