"""A thread launches a plain Triton kernel with tensors of the second GPU.

``fails``: without setting its current device, which for a new thread is the first GPU. ``serial``:
in the main thread, which has set it. ``fixed``: the thread sets it first.
"""

import sys
import threading

import torch
import triton
import triton.language as tl

MODE = sys.argv[1]


@triton.jit
def double(source, target, size, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    mask = place < size
    tl.store(target + place, 2 * tl.load(source + place, mask=mask), mask=mask)


def launch():
    x = torch.randn(64, device="cuda:1")
    y = torch.empty_like(x)
    double[(1,)](x, y, 64, block=64)
    torch.cuda.synchronize("cuda:1")
    print((y == 2 * x).all().item())


torch.randn(8, device="cuda:0").sum().item()  # torch leaves a device alone that nobody used
compiled = torch.compile(lambda x: x.sin(), backend="eager")
torch.cuda.set_device(1)
compiled(torch.randn(8, device="cuda:1"))


def work():
    compiled(torch.randn(8, device="cuda:1"))
    if MODE == "fixed":
        torch.cuda.set_device(1)
    launch()


if MODE == "serial":
    launch()
else:
    thread = threading.Thread(target=work, name="launcher")
    thread.start()
    thread.join()
