"""Compiled flex_attention, one block mask made once, read by threads in the warm-up's mode."""

import threading

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

flex = torch.compile(flex_attention, backend="aot_eager")
mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")


@torch.no_grad()
def attend():
    q = torch.randn(1, 2, 128, 16)
    flex(q, q, q, block_mask=mask)


attend()
threads = [threading.Thread(target=attend) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
