"""What a step came to: numbers that are summed over the drafters, and the figures made of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from dflash_min.loss import LossSums
from dflash_min.lr import lr_share
from dflash_min.readback import Readback

if TYPE_CHECKING:
    from dflash_min.resolve import Resolved


@dataclass(frozen=True)
class StepReport:
    """One optimiser step, over all drafters."""

    step: int
    """From 0."""
    loss: float
    """Weighted mean of the cross-entropy in nats; nan, as the next three, where none was scored."""
    accept_len: float
    """Mean number of tokens a block would have been accepted for, the free one included."""
    tokens: int
    seconds: float
    """Of the slowest drafter, waiting for targets included."""
    lr: float
    """Learning rate of the step."""
    accuracy: float
    """Share of the scored slots that are correct."""
    slot_accuracy: tuple[float, ...]
    """The same by slot: of the first one after the anchor, and so on."""

    def values(self) -> dict[str, object]:
        """Return all figures by name, without the step."""
        values = asdict(self)
        del values["step"]
        return values


WEIGHT, LOSS, _ACCEPTED, _BLOCKS, TOKENS, _SLOTS = range(6)
"""Where in `step_numbers` what is; from _SLOTS on correct slots by index, then scored ones."""


def read_sums(sums: LossSums) -> Readback:
    """Begin to copy the sums of a batch from its device, all at once."""
    scalars = torch.stack(
        [
            part.detach().double()
            for part in (sums.weight_sum, sums.weighted_sum, sums.accepted, sums.blocks)
        ]
    )
    slots = torch.cat([sums.slot_correct, sums.slot_scored]).double()
    return Readback(torch.cat([scalars, slots]))


def step_numbers(sums: Readback, tokens: int) -> list[float]:
    """Return what is summed over the replicas, once `read_sums` has it."""
    numbers = sums.tolist()
    return [*numbers[:TOKENS], float(tokens), *numbers[TOKENS:]]


def step_report(
    resolved: Resolved, step: int, totals: tuple[float, ...], seconds: float
) -> StepReport:
    """Make the report of a step from `step_numbers` summed over the drafters."""
    means = _sums(totals).means()
    return StepReport(
        step,
        loss=means.loss,
        accept_len=means.accept_len,
        tokens=round(totals[TOKENS]),
        seconds=seconds,
        lr=resolved.lr * lr_share(step, resolved.steps, resolved.lr_warmup),
        accuracy=means.accuracy,
        slot_accuracy=means.slot_accuracy,
    )


def _sums(numbers: tuple[float, ...]) -> LossSums:
    wide = torch.tensor(numbers, dtype=torch.float64)
    slot_correct, slot_scored = wide[_SLOTS:].chunk(2)
    return LossSums(
        weighted_sum=wide[LOSS],
        weight_sum=wide[WEIGHT],
        slot_correct=slot_correct,
        slot_scored=slot_scored,
        accepted=wide[_ACCEPTED],
        blocks=wide[_BLOCKS],
    )
