"""A thread builds a block mask while another compiles: ``race``, or ``serial`` after it.

AOTAutograd replaces ``torch.fx.traceback.current_meta`` while it traces and puts the old dict back
afterwards. The mask's builder adds a key to that dict and later removes it. In ``race`` the trace
is held in the fake kernel of an operator until the builder has added its key, and the builder is
held in a torch-function mode until the compile has ended: the same interleaving on every run.
"""

import sys
import threading

import torch
import torch._dynamo  # the lazy import of these two is a race of its own, not the one shown here
import torch._inductor.compile_fx
from torch.nn.attention.flex_attention import create_block_mask
from torch.overrides import TorchFunctionMode

RACE = sys.argv[1] == "race"
tracing, building, compiled = threading.Event(), threading.Event(), threading.Event()


@torch.library.custom_op("race::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    if RACE and torch.fx.traceback.has_preserved_node_meta():
        tracing.set()
        building.wait(60)
    return torch.empty_like(x)


class HoldInTheMiddle(TorchFunctionMode):
    """Waits at the builder's sort, where its key is in the dict."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.argsort and RACE:
            building.set()
            compiled.wait(60)
        return function(*args, **(kwargs or {}))


def compile_something():
    try:
        torch.compile(lambda x: double(x.sin()), backend="aot_eager")(torch.randn(8))
    finally:
        compiled.set()


def build_mask():
    (tracing if RACE else compiled).wait(60)
    try:
        with HoldInTheMiddle():
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
