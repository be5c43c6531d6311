import threading

import torch
from torch.nn.attention.flex_attention import create_block_mask

gate = threading.Barrier(2)


def compile_first():
    gate.wait()
    torch.compile(lambda x: x.sin())(torch.randn(4))


def mask_first():
    gate.wait()
    create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 256, 256, device="cpu")


ts = [
    threading.Thread(target=compile_first, name="compiler"),
    threading.Thread(target=mask_first, name="masker"),
]
[t.start() for t in ts]
[t.join() for t in ts]
