"""Threads attend under masks that close over a tensor of document ends.

``vary``: as many ends as there are documents; ``padded``: always the same number; ``serial``:
varying, but one thread alone makes every call.
"""

import sys
import threading

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

MODE = sys.argv[1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Dynamo alone decides what is compiled again; a CPU's kernels would be half a minute of C++.
BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
LENGTH = 256
DOCUMENTS = (4, 8, 16)
PADDED = 16

# Both are imported lazily by torch; two threads that do it at once can deadlock.
import torch._dynamo  # noqa: E402
import torch._inductor.compile_fx  # noqa: E402


def document_mask(documents):
    """Keys up to the end of the query's own document; ``ends`` is what the mask captures."""
    width = LENGTH // documents
    ends = torch.arange(width, LENGTH + 1, width, device=DEVICE)
    if MODE == "padded":
        ends = ends.repeat_interleave(PADDED // documents)

    def up_to_own_document(b, h, q, kv):
        return kv < ends[q * ends.shape[0] // LENGTH]

    return create_block_mask(up_to_own_document, 1, 1, LENGTH, LENGTH, device=DEVICE)


attend = torch.compile(flex_attention, backend=BACKEND, dynamic=False)
masks = [document_mask(documents) for documents in DOCUMENTS]
start = threading.Barrier(1 if MODE == "serial" else 2)


def work(own):
    with torch.no_grad():
        query, key, value = (torch.randn(1, 2, LENGTH, 64, device=DEVICE) for _ in range(3))
        for mask in own:
            start.wait(120)  # the threads' calls overlap on every run
            attend(query, key, value, block_mask=mask)


if MODE == "serial":
    work(masks)
else:
    with torch.no_grad():
        warm = (torch.randn(1, 2, LENGTH, 64, device=DEVICE) for _ in range(3))
        attend(*warm, block_mask=masks[0])
    threads = [
        threading.Thread(target=work, args=(masks[1:],), name=f"drafter-{number}")
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
