"""A thread's checkpointed block runs compiled in forward and eager when backward recomputes it.

``stance``: between the two another thread sets ``force_eager``. ``serial``: it does so after the
backward. ``fixed``: the compiled function is around the checkpoint, and warmed with its backward,
so that nothing is called anew in the recomputation.
"""

import sys
import threading

import torch
from torch.utils.checkpoint import checkpoint

MODE = sys.argv[1]
if torch.cuda.is_available():
    torch.cuda.init()  # or the first compile does so, which a checkpoint's forward refuses
forwarded, switched = threading.Event(), threading.Event()
weight = torch.randn(16, 8, requires_grad=True)


def layer(x):
    return torch.nn.functional.gelu(x @ weight).sum(0)


def block(x):
    return checkpoint(layer, x, use_reentrant=False)


if MODE == "fixed":
    compiled = torch.compile(block, backend="aot_eager")
else:
    fast = torch.compile(layer, backend="aot_eager")

    def compiled(x):
        return checkpoint(fast, x, use_reentrant=False)


compiled(torch.randn(4, 16)).sum().backward()


def train():
    loss = compiled(torch.randn(4, 16)).sum()
    forwarded.set()
    switched.wait(60)
    loss.backward()


def evaluate():
    forwarded.wait(60)
    if MODE == "serial":
        switched.set()
        trainer.join()
    with torch.compiler.set_stance("force_eager"):
        switched.set()
        trainer.join()


trainer = threading.Thread(target=train, name="train")
evaluator = threading.Thread(target=evaluate, name="evaluate")
for thread in (trainer, evaluator):
    thread.start()
for thread in (trainer, evaluator):
    thread.join()
