"""error_on_nested_fx_trace=False: a cached attention call during another's trace runs dense."""

import threading

import torch
from torch.nn.attention.flex_attention import flex_attention

attention = torch.compile(flex_attention, backend="aot_eager", dynamic=False)
inside, called = threading.Event(), threading.Event()


class Slow(torch.nn.Module):
    def forward(self, x):
        inside.set()
        called.wait(60)
        return x + 1


def call():
    torch._dynamo.config.error_on_nested_fx_trace = False
    with torch.no_grad():
        attention(*(torch.randn(1, 1, 16, 16) for _ in range(3)))


def serve():
    inside.wait(60)
    try:
        call()
    finally:
        called.set()


call()
threads = [
    threading.Thread(target=lambda: torch.fx.symbolic_trace(Slow()), name="tracer"),
    threading.Thread(target=serve, name="drafter"),
]
[t.start() for t in threads]
[t.join() for t in threads]
