"""Two threads that do the same, with nothing of their own that orders them.

What they do makes a race of torch's possible and, by itself, unlikely; under a named plan of the
same name (``harness.watch --schedule NAME -- two_threads.py NAME [DEVICE]``) it is certain.
"""

import sys
import threading

import torch
import torch._dynamo  # the lazy import of this is a race of its own, not one shown here
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask

WHAT = sys.argv[1]

if WHAT != "stampede":  # which compiles for the eager backend only, and needs two seconds less
    import torch._inductor.compile_fx  # a race of its own, too
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"

# CUDA builds of torch up to 2.13 crash on a machine without a GPU when the process's first compile
# is a thread's; entering the mode once in the main thread avoids it.
with FakeTensorMode():
    torch.empty(1)

fast = torch.compile(lambda x: x.sin().cos(), backend="eager")
fast(torch.randn(8, device=DEVICE))
shared = torch.compile(lambda x: x.tanh() + 1, backend="eager")


def own(number, backend="aot_eager"):
    """A function that only one thread compiles."""
    scope = {}
    exec(f"def own_{number}(x): return x.exp() * {number}.5", scope)
    torch.compile(scope[f"own_{number}"], backend=backend)(torch.randn(8, device=DEVICE))


def trace():
    torch.fx.symbolic_trace(lambda x: x.sin() + 1)


def build_mask():
    return create_block_mask(lambda b, h, q, kv: q >= kv, 1, 1, 256, 256, device=DEVICE)


def branch():
    """An operator of higher order, uncompiled: it compiles a wrapper of its own."""
    yes = torch.ones((), dtype=torch.bool, device=DEVICE)
    torch.cond(yes, lambda x: x.sin(), lambda x: x.cos(), (torch.randn(8, device=DEVICE),))


def fx_flag(number):
    fast(torch.randn(8, device=DEVICE))
    trace()


def fx_flag_compile(number):
    fast(torch.randn(8, device=DEVICE))
    own(number)


def fx_flag_sticky(number):
    if number == 1:
        trace()
        fast(torch.randn(8, device=DEVICE))
    else:
        build_mask()
        branch()


def is_compiling(number):
    fast(torch.randn(8, device=DEVICE))
    scale = 2.0 if torch.compiler.is_compiling() else 1.0
    fast(torch.randn(8, device=DEVICE) * scale)
    own(number)


def stampede(number):
    shared(torch.randn(8, device=DEVICE))
    own(number, "eager")


def fx_annotation(number):
    fast(torch.randn(8, device=DEVICE))
    build_mask()
    own(number)


def fx_patcher(number):
    build_mask()
    trace()
    fast(torch.randn(8, device=DEVICE))


BODIES = (
    fx_flag,
    fx_flag_compile,
    fx_flag_sticky,
    is_compiling,
    stampede,
    fx_annotation,
    fx_patcher,
)
body = next(body for body in BODIES if body.__name__ == WHAT.replace("-", "_"))
threads = [threading.Thread(target=body, args=(number,)) for number in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
