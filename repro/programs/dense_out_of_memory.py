"""Two threads attend over a length whose scores do not fit in memory: ``eager`` or ``compiled``.

``eager-mask`` builds the block mask of a much greater length instead, uncompiled, which makes the
whole mask first; ``compiled-mask`` compiles that.
"""

import sys
import threading

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

MODE = sys.argv[1]
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
# Scores of B x H x Q x KV elements of 4 bytes: 8 GiB a copy on a GPU, 512 MiB on a CPU.
HEADS = 32 if CUDA else 8
LENGTH = 8192 if CUDA else 4096
MASK_LENGTH = 1 << 18 if CUDA else 1 << 14


def causal(b, h, q, kv):
    return q >= kv


make_mask = torch.compile(create_block_mask)
compiled = torch.compile(flex_attention)


def attend(call):
    with torch.no_grad():
        mask = create_block_mask(causal, 1, 1, LENGTH, LENGTH, device=DEVICE)
        query, key, value = (
            torch.randn(1, HEADS, LENGTH, 64, device=DEVICE, dtype=torch.float32) for _ in range(3)
        )
        call(query, key, value, block_mask=mask)


def build(call):
    call(causal, 1, 1, MASK_LENGTH, MASK_LENGTH, device=DEVICE)


if MODE.endswith("mask"):
    build(make_mask)
    calls = [(build, make_mask), (build, create_block_mask if MODE == "eager-mask" else make_mask)]
else:
    attend(compiled)
    calls = [(attend, compiled), (attend, flex_attention if MODE == "eager" else compiled)]

for number, (work, call) in enumerate(calls):
    # One after the other: this is about memory, not about compiling at once.
    thread = threading.Thread(target=work, args=(call,), name=f"drafter-{number}")
    thread.start()
    thread.join()
