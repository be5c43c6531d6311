"""How good a drafter is on text that it was not trained on, during training and after it.

The figures are those of training, under teacher forcing: acceptance in real generation is measured
by `dflash_min.generate`. Evaluating changes nothing that training depends on. It draws nothing from
a generator that lives on; gradients are off in the calling thread only; nothing compiled is called,
since a call without gradients would be a recompile. In training it is for the thread of the
replica that is evaluated, between two steps: no other thread changes those weights.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from dflash_min.batches import held_out_batch

if TYPE_CHECKING:
    from dflash_min.data import Text
    from dflash_min.loss import LossSums
    from dflash_min.replica import Replica
    from dflash_min.resolve import Resolved
    from dflash_min.targets.interface import TargetModel


@dataclass(frozen=True)
class Evaluation:
    """Figures of one evaluation; nan where nothing was scored."""

    step: int
    """Finished optimiser steps."""
    loss: float
    """Weighted mean of the cross-entropy in nats, as in training."""
    accuracy: float
    """Share of the scored slots whose likeliest token is right."""
    accept_len: float
    """Mean number of tokens that a block would commit: leading correct slots + 1."""
    slot_accuracy: tuple[float, ...]
    """Accuracy by slot: of the first one after the anchor, and so on."""

    def values(self) -> dict[str, object]:
        """Return all figures by name, without the step."""
        values = asdict(self)
        del values["step"]
        return values

    def line(self) -> str:
        """Return the figures as a line to read."""
        slots = " ".join("-" if math.isnan(x) else f"{x:.2f}" for x in self.slot_accuracy)
        return (
            f"held out after step {self.step}: loss {self.loss:.4f}, accept_len "
            f"{self.accept_len:.2f}, accuracy {self.accuracy:.3f}; by slot {slots}"
        )


class Evaluator:
    """Evaluates one replica on the same batches of held-out text each time."""

    def __init__(
        self, resolved: Resolved, text: Text, target: TargetModel, replica: Replica
    ) -> None:
        """Take what is evaluated.

        Args:
            resolved: the run; `eval_batches` says on how much text, `eval_every` how often.
            text: with a held-out part, if there is anything to evaluate.
            target: whose features are read; threads may share it.
            replica: whose drafter is evaluated.
        """
        self._resolved = resolved
        self._text = text
        self._target = target
        self._replica = replica
        self._last: Evaluation | None = None

    def due(self, step: int) -> bool:
        """Return whether to evaluate in training, after this many finished steps."""
        every = self._resolved.eval_every
        return bool(every and self._resolved.eval_batches) and step % every == 0

    def __call__(self, step: int) -> Evaluation:
        """Evaluate after `step` finished steps, once for each step."""
        if self._last is None or self._last.step != step:
            self._last = summarised(step, self.sums())
        return self._last

    def warm_up(self) -> None:
        """Run one batch if any evaluation is due in training; for the time before threads start.

        Kernels that are compiled at their first call, as Triton's are, are compiled here.
        """
        if self._resolved.eval_every:
            self._batch(0)

    def sums(self) -> LossSums:
        """Return the sums over all batches, on the CPU."""
        parts = [self._batch(number) for number in range(self._resolved.eval_batches)]
        return sum(parts[1:], start=parts[0])

    def _batch(self, number: int) -> LossSums:
        replica = self._replica
        with torch.no_grad():
            batch = held_out_batch(self._resolved, self._text, self._target, number, replica.device)
            return replica.forward_dense(batch).detached()


def summarised(step: int, sums: LossSums) -> Evaluation:
    """Turn sums into means."""
    means = sums.means()
    return Evaluation(
        step,
        loss=means.loss,
        accuracy=means.accuracy,
        accept_len=means.accept_len,
        slot_accuracy=means.slot_accuracy,
    )
