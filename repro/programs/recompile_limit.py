"""Two threads call one compiled function with lengths of their own, one after the other.

``shared``: the first one's lengths use up the recompile limit, so the second one's calls run eager.
``alone``: the second thread stays within the lengths of the warm-up. ``fixed``: the function's own
limit is high enough (``recompile_limit=`` of ``torch.compile`` where this torch has it, else the
config, which is the process's there).
"""

import sys
import threading

import torch
import torch._dynamo as dynamo

MODE = sys.argv[1]
OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12)
options = {}
if MODE == "fixed" and OLD:
    dynamo.config.recompile_limit = 64
elif MODE == "fixed":
    options["recompile_limit"] = 64


@torch.compile(backend="aot_eager", dynamic=False, **options)
def step(x):
    return torch.tanh(x).sum()


step(torch.randn(2))


def train(lengths):
    for length in lengths:
        step(torch.randn(length))


second = [2] * 4 if MODE == "alone" else range(20, 24)
for name, lengths in (("long", range(3, 13)), ("short", second)):
    thread = threading.Thread(target=train, args=(lengths,), name=name)
    thread.start()
    thread.join()
