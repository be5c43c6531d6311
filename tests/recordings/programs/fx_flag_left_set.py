"""A flag saved during another thread's trace and restored after it, as uncompiled flex_attention
does (``torch._higher_order_ops.utils._set_compilation_env``); then cached calls raise for ever.
"""

import contextlib
import threading

import torch
from torch._higher_order_ops.utils import _set_compilation_env

cached = torch.compile(torch.sin, backend="eager")
cached(torch.randn(4))
saved, over = threading.Event(), threading.Event()
inside = threading.Event()


class Slow(torch.nn.Module):
    def forward(self, x):
        inside.set()
        saved.wait(60)
        return x + 1


def trace():
    torch.fx.symbolic_trace(Slow())
    over.set()


def save_and_restore():
    inside.wait(60)
    with _set_compilation_env():
        saved.set()
        over.wait(60)


threads = [threading.Thread(target=trace), threading.Thread(target=save_and_restore)]
[t.start() for t in threads]
[t.join() for t in threads]


def serve():
    for _ in range(4):
        with contextlib.suppress(RuntimeError):
            cached(torch.randn(4))


server = threading.Thread(target=serve, name="server")
server.start()
server.join()
