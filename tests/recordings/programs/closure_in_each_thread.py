"""Threads that each define and compile the same closure share one code object, and one cache."""

import sys
import threading

import torch

both = threading.Barrier(2)
x = torch.randn(4, 4)


def compiled(scale):
    @torch.compile(backend="aot_eager")
    def f(x):
        return (x * scale).sin() + 1

    return f


def scaled(x, scale):
    return (x * scale).sin() + 1


def loop(f, *more):
    both.wait()
    f(x, *more)
    f(x, *more)


def own(scale):
    loop(compiled(scale))


if "fixed" in sys.argv[1:]:
    # Once, outside of the threads; what differs between them is an argument, and warmed up too.
    shared = torch.compile(scaled, backend="aot_eager")
    scales = [torch.tensor(1.5), torch.tensor(2.5)]
    shared(x, scales[0])
    threads = [threading.Thread(target=loop, args=(shared, scale)) for scale in scales]
else:
    threads = [threading.Thread(target=own, args=(scale,)) for scale in (1.5, 2.5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
