"""A cached call while another thread traces inside its compile, forced by a hold in the tracer.

The two drafters were warmed under no_grad: the first one's recompile is what the other one meets.
"""

import threading

import torch
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

weight = torch.randn(8, 8, requires_grad=True)


@torch.compile(backend="aot_eager", dynamic=True)
def block(x):
    return torch.tanh(x @ weight).sum()


@torch.compile(backend="aot_eager", dynamic=True)
def cached(x):
    return torch.sin(x)


with torch.no_grad():
    for length in (4, 6):
        block(torch.randn(length, 8))
for length in (4, 6):
    cached(torch.randn(length))

tracing, called = threading.Event(), threading.Event()
create_arg = PythonKeyTracer.create_arg


def held(self, *args, **kwargs):
    tracing.set()
    called.wait(60)
    return create_arg(self, *args, **kwargs)


PythonKeyTracer.create_arg = held


def train():
    block(torch.randn(10, 8)).backward()


def infer():
    tracing.wait(60)
    try:
        cached(torch.randn(10))
    finally:
        called.set()


threads = [
    threading.Thread(target=train, name="drafter-0"),
    threading.Thread(target=infer, name="drafter-1"),
]
[t.start() for t in threads]
[t.join() for t in threads]
