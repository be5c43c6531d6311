"""Small runs that are saved, and what is compared of them."""

from __future__ import annotations

import torch

from dflash_min.saving import metrics

from . import trainers
from .trainers import state


def everything(trainer):
    """All that training changes, on each replica, as bits."""
    return [
        (state(replica.drafter), bits(optimizer.state_dict()))
        for replica, optimizer in zip(trainer.replicas, trainer.optimizers, strict=True)
    ]


def bits(value):
    if isinstance(value, torch.Tensor):
        return trainers.bits(value)
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items()}
    return [bits(each) for each in value] if isinstance(value, list) else value


def lines(out):
    """All of metrics.jsonl but the times."""
    found = metrics.read(out / metrics.FILE)
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def stopping_after(trainer, step):
    """Run, and ask for a stop in the report of a step (from 1)."""

    def report(each):
        if each.step + 1 == step:
            trainer.stop()

    return trainer.run(report)


SETTINGS = {"threads": 3, "steps": 5, "lr": 5e-3}
