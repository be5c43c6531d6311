"""Two threads attend over a length whose scores do not fit in memory: ``eager`` or ``compiled``.

``eager-mask`` builds the block mask of a much greater length instead, uncompiled, which makes the
whole mask first; ``compiled-mask`` compiles that. Several words are done one after the other.
"""

import sys
import threading

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
# Scores of B x H x Q x KV elements of 4 bytes: 8 GiB a copy on a GPU, 512 MiB on a CPU.
HEADS = 32 if CUDA else 8
LENGTH = 8192 if CUDA else 4096
HEAD_DIM = 64 if CUDA else 16  # the scores' size is the same, and a CPU takes a quarter of the time
MASK_LENGTH = 1 << 18 if CUDA else 1 << 14


def causal(b, h, q, kv):
    return q >= kv


make_mask = torch.compile(create_block_mask)
compiled = torch.compile(flex_attention)


def attend(call):
    with torch.no_grad():
        mask = create_block_mask(causal, 1, 1, LENGTH, LENGTH, device=DEVICE)
        query, key, value = (
            torch.randn(1, HEADS, LENGTH, HEAD_DIM, device=DEVICE) for _ in range(3)
        )
        call(query, key, value, block_mask=mask)


def build(call):
    call(causal, 1, 1, MASK_LENGTH, MASK_LENGTH, device=DEVICE)


for mode in sys.argv[1:]:
    if mode.endswith("mask"):
        work, fused, dense = build, make_mask, create_block_mask
    else:
        work, fused, dense = attend, compiled, flex_attention
    work(fused)
    for number, call in enumerate((fused, dense if mode.startswith("eager") else fused)):
        # One after the other: this is about memory, not about compiling at once.
        thread = threading.Thread(target=work, args=(call,), name=f"drafter-{number}")
        thread.start()
        thread.join()
