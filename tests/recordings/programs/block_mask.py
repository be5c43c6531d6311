"""Block masks built in one thread while another compiles, until one fails."""

import threading

import torch
from torch.nn.attention.flex_attention import BlockMask

weight = torch.randn(8, 8, requires_grad=True)
number = torch.ones(1, 1, 4, dtype=torch.int32)
indices = torch.zeros(1, 1, 4, 4, dtype=torch.int32)
stop = threading.Event()


@torch.compile(backend="aot_eager", dynamic=False)
def block(x):
    for _ in range(30):
        x = torch.tanh(x @ weight)
    return x.sum()


block(torch.randn(3, 8)).backward()
torch._dynamo.config.recompile_limit = 256


def compile_on():
    torch._dynamo.config.recompile_limit = 256
    for length in range(4, 200):
        if stop.is_set():
            return
        block(torch.randn(length, 8)).backward()


def build():
    block(torch.randn(3, 8)).backward()
    try:
        while not done.is_set():
            BlockMask.from_kv_blocks(number, indices, BLOCK_SIZE=16)
    finally:
        stop.set()


done = threading.Event()
builder = threading.Thread(target=build, name="drafter-1")
compiler = threading.Thread(target=compile_on, name="drafter-0")
builder.start()
compiler.start()
compiler.join()
done.set()
builder.join()
