"""Three threads run flex attention without gradients: ``eager`` one uncompiled, or ``compiled``."""

import sys
import threading

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

MODE = sys.argv[1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# What is asked of the compiled calls is that they are none of the dense ones, whatever runs them.
BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
LENGTH = 256


def causal(b, h, q, kv):
    return q >= kv


mask = create_block_mask(causal, 1, 1, LENGTH, LENGTH, device=DEVICE)
compiled = torch.compile(flex_attention, backend=BACKEND)


def attend(call):
    with torch.no_grad():
        query, key, value = (torch.randn(1, 2, LENGTH, 64, device=DEVICE) for _ in range(3))
        for _ in range(3):
            call(query, key, value, block_mask=mask)


attend(compiled)
calls = [compiled, compiled, flex_attention if MODE == "eager" else compiled]
if MODE == "serial-eager":
    attend(flex_attention)
    calls = []
threads = [
    threading.Thread(target=attend, args=(call,), name=f"drafter-{number}")
    for number, call in enumerate(calls)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
