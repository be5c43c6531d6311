"""Small runs that are saved, and what is compared of them."""

from __future__ import annotations

from dflash_min.saving import metrics

from .trainers import bits, state


def everything(trainer):
    """All that training changes, on each replica, as bits."""
    return [
        (state(replica.drafter), bits(optimizer.state_dict()))
        for replica, optimizer in zip(trainer.replicas, trainer.optimizers, strict=True)
    ]


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
