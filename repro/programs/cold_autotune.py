"""Two threads make the first calls of a triton kernel under ``@triton.autotune``.

Without a GPU the kernel is a stand-in that Python runs; the autotuner around it is triton's own.
``race``: the hook by which a program may leave out configs keeps one call in the autotuner until
the other has returned. ``natural``: nothing keeps anybody, and each thread calls many kernels.
``serial``: one after the other. ``warmed``: main calls first. ``locked``: a lock around each call.
"""

import contextlib
import sys
import threading

import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

MODE = sys.argv[1]
HAS_GPU = torch.cuda.is_available()
SIZE = 4096
CONFIGS = [triton.Config({"block": block}) for block in (256, 512)]
KERNELS = 8 if MODE == "natural" else 1

# CUDA builds of torch up to 2.13 crash on a machine without a GPU where a thread compiles first.
with FakeTensorMode():
    torch.empty(1)

inside, returned = threading.Event(), threading.Event()


def keep_first(configs, named_args, **kwargs):
    """Is called with a cold call's arguments in place, before any config is tried."""
    if threading.current_thread().name == "first":
        inside.set()
        returned.wait(60)
    return configs


@triton.jit
def doubled(x_ptr, out_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


class StandIn:
    """What the autotuner takes for a kernel, run by Python."""

    arg_names = ("x_ptr", "out_ptr", "n", "block")
    fn = staticmethod(doubled.fn)

    def run(self, x, out, n, *, grid, warmup, block, **options):
        for at in range(0, n, block):
            torch.mul(x[at : at + block], 2, out=out[at : at + block])


def timed(call, quantiles):
    call()
    return [1.0] * len(quantiles)


def made():
    return triton.autotune(
        configs=CONFIGS,
        key=["n"],
        prune_configs_by={"early_config_prune": keep_first} if MODE == "race" else None,
        do_bench=None if HAS_GPU else timed,
    )(doubled if HAS_GPU else StandIn())


kernels = [made() for _ in range(KERNELS)]
lock = threading.Lock() if MODE == "locked" else contextlib.nullcontext()
compiled = torch.compile(lambda x: x + 1, backend="eager")
device = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")
x = torch.ones(SIZE, device=device)
compiled(x)
failures = []


def blocks(meta):
    return (triton.cdiv(SIZE, meta["block"]),)


def call_all():
    for kernel in kernels:
        out = torch.zeros_like(x)
        with lock:
            kernel[blocks](x, out, SIZE)
        if out.sum().item() != 2 * SIZE:
            failures.append(threading.current_thread().name)


def first():
    compiled(x)
    call_all()


def second():
    compiled(x)
    if MODE == "race":
        inside.wait(60)
    try:
        call_all()
    finally:
        returned.set()


if MODE == "warmed":
    call_all()
threads = [
    threading.Thread(target=first, name="first"),
    threading.Thread(target=second, name="second"),
]
for thread in threads:
    thread.start()
    if MODE == "serial":
        thread.join()
for thread in threads:
    thread.join()
print("triton", triton.__version__, "wrong results:", len(failures))
