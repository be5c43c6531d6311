"""A worker hits the default recompile limit, main has raised it; attention then runs dense."""

import threading

import torch
from torch.nn.attention.flex_attention import flex_attention

torch._dynamo.config.recompile_limit = 64
attention = torch.compile(flex_attention, backend="aot_eager", dynamic=False)


def call(length):
    with torch.no_grad():
        q, k, v = (torch.randn(1, 1, length, 16) for _ in range(3))
        attention(q, k, v)


call(16)


def loop():
    for length in range(17, 28):
        call(length)


thread = threading.Thread(target=loop, name="drafter")
thread.start()
thread.join()
