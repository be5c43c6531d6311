"""A thread builds a block mask while another compiles.

AOTAutograd replaces ``torch.fx.traceback.current_meta`` while it traces and puts the old dict back
afterwards. The mask's builder adds a key to that dict and later removes it. In ``race`` the trace
is held in the fake kernel of an operator until the builder has added its key, and the builder is
held in a torch-function mode until the compile has ended: the same interleaving on every run. In
``locked`` the builder starts in the middle of the trace as well, but one lock is around both. In
``serial`` it starts after the compile.
"""

import contextlib
import sys
import threading

import torch
import torch._dynamo  # the lazy import of these two is a race of its own, not the one shown here
import torch._inductor.compile_fx
from torch.nn.attention.flex_attention import create_block_mask
from torch.overrides import TorchFunctionMode

MODE = sys.argv[1]
tracing, building, compiled = threading.Event(), threading.Event(), threading.Event()
lock = threading.RLock() if MODE == "locked" else contextlib.nullcontext()


@torch.library.custom_op("race::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    if torch.fx.traceback.has_preserved_node_meta():
        tracing.set()
        if MODE == "race":
            building.wait(60)
    return torch.empty_like(x)


class HoldInTheMiddle(TorchFunctionMode):
    """Waits at the builder's sort, where its key is in the dict."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.argsort and MODE == "race":
            building.set()
            compiled.wait(60)
        return function(*args, **(kwargs or {}))


def compile_something():
    try:
        with lock:
            torch.compile(lambda x: double(x.sin()), backend="aot_eager")(torch.randn(8))
    finally:
        compiled.set()


def build_mask():
    (compiled if MODE == "serial" else tracing).wait(60)
    try:
        with lock, HoldInTheMiddle():
            create_block_mask(lambda b, h, q, kv: q >= kv, 1, 1, 256, 256, device="cpu")
    finally:
        building.set()


threads = [
    threading.Thread(target=compile_something, name="compiler"),
    threading.Thread(target=build_mask, name="mask-builder"),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
