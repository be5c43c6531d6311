"""The program leaves with a text for its user, from a function that compiled code has called."""

import sys

import torch


def need(value: float) -> None:
    if value > -100:
        sys.exit(f"no checkpoint in {'runs/17'}: nothing to resume")


compiled = torch.compile(torch.sin, backend="eager")
need(float(compiled(torch.randn(4))[0]))
