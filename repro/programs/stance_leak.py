"""One thread trains with a compiled function while another sets a stance for a block of its own.

``eager``: it evaluates under ``force_eager``. ``unguarded``: it serves with guards skipped.
``raising``: it wants to hear of recompiles, and the trainer's next length is one. ``serial``: as
``eager``, but the trainer waits. ``fixed``: it calls the plain function and sets no stance. The
trainer's calls meet the other thread's block on every run: each waits for the other.
"""

import sys
import threading

import torch

MODE = sys.argv[1]
STANCES = {
    "unguarded": {"stance": "default", "skip_guard_eval_unsafe": True},
    "raising": {"stance": "fail_on_recompile"},
}
inside, stepped = threading.Event(), threading.Event()


def step(x):
    return x.sin().cos()


compiled = torch.compile(step, backend="aot_eager", dynamic=False)
for length in (8, 9):
    compiled(torch.randn(length))


def train():
    for _ in range(4):
        compiled(torch.randn(8))
    trained.set()
    inside.wait(60)
    for _ in range(4):
        try:
            compiled(torch.randn(10 if MODE == "raising" else 8))
        finally:
            stepped.set()


def evaluate():
    trained.wait(60)
    if MODE == "fixed":
        inside.set()
        step(torch.randn(8))
        return
    with torch.compiler.set_stance(**STANCES.get(MODE, {"stance": "force_eager"})):
        if MODE != "serial":
            inside.set()
            stepped.wait(60)
            trainer.join()
        compiled(torch.randn(8))
    inside.set()


trained = threading.Event()
trainer = threading.Thread(target=train, name="train")
evaluator = threading.Thread(target=evaluate, name="evaluate")
for thread in (trainer, evaluator):
    thread.start()
for thread in (trainer, evaluator):
    thread.join()
