"""A function is warmed up for calls that differ in one thing from those of two threads.

``warmed_otherwise.py KIND MODE``. The kind says in what: ``num_threads``, ``numeric_flags``,
``requires_grad``, ``dispatch_keys`` (a tensor made in inference mode), ``dtype``, ``layout``,
``python_value`` (an attribute that the function reads), ``dynamic_marking``.

``fails``: the threads meet it. ``alone``: the main thread meets it, and no other one calls.
``fixed``: the warm-up has it already.
"""

import sys
import threading

import torch
from torch._dynamo import mark_dynamic

KIND, MODE = sys.argv[1:]
torch.set_num_threads(2)


class Settings:
    """What the function reads an attribute of."""

    def __init__(self):
        self.scale = 2.0


settings = Settings()


def step(x):
    return (torch.tanh(x) * settings.scale).sum()


def plain():
    return torch.randn(8, 16)


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.randn(8, 16)


def marked():
    x = plain()
    mark_dynamic(x, 0)
    return x


OTHERWISE = {
    "requires_grad": lambda: plain().requires_grad_(),
    "dispatch_keys": made_in_inference_mode,
    "dtype": lambda: plain().double(),
    "layout": lambda: torch.randn(16, 8).t(),
    "dynamic_marking": marked,
}
batch = OTHERWISE.get(KIND, plain)


def set_otherwise():
    """What is state of the process, or that a new thread takes over."""
    if KIND == "num_threads":
        torch.set_num_threads(1)
    elif KIND == "numeric_flags":
        torch.set_float32_matmul_precision("high")
    elif KIND == "python_value":
        settings.scale = 3.0


compiled = torch.compile(step, backend="eager")
if MODE == "fixed":
    set_otherwise()
    compiled(batch())
else:
    compiled(plain())
    set_otherwise()
gate = threading.Barrier(2)


def loop():
    for _ in range(2):
        gate.wait()
        compiled(batch())


if MODE == "alone":
    compiled(batch())
else:
    threads = [threading.Thread(target=loop, name=f"trainer-{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
