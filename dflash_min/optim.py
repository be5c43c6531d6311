"""AdamW, its learning rate over the steps, and one gradient for all replicas."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import torch

from dflash_min.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.nn import Parameter

    from dflash_min.config import Resolved


def lr_share(step: int, steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a step (from 0): linear rise, cosine to 0.

    This is the schedule of the DFlash paper (arXiv 2602.06036, A.1), where `warmup` is 0.04.
    """
    rise = math.ceil(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


class Optimizer:
    """AdamW on one replica's parameters, with gradients clipped by their global norm."""

    def __init__(self, parameters: Sequence[Parameter], resolved: Resolved) -> None:
        self._parameters = list(parameters)
        self._resolved = resolved
        self._adamw = torch.optim.AdamW(
            self._parameters, lr=resolved.lr, weight_decay=resolved.weight_decay
        )

    def step(self, step: int) -> None:
        """Apply the gradients of step `step` (from 0) and drop them."""
        resolved = self._resolved
        for group in self._adamw.param_groups:
            group["lr"] = resolved.lr * lr_share(step, resolved.steps, resolved.lr_warmup)
        torch.nn.utils.clip_grad_norm_(self._parameters, resolved.max_grad_norm)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)


class Average:
    """Gives every replica the gradient that one replica would have on all their batches.

    Each replica differentiates its sum of weighted token losses, not the mean: replicas with more
    weight then count for more, as in the summed batch. All replicas add the sums in rank order and
    divide by the summed weight, so that they get equal bits where their devices are of one kind.

    On CUDA, reading another thread's gradients needs no event: all threads use each device's
    default stream, a copy between devices runs in both, and the meeting orders the launches.
    """

    def __init__(self, replicas: int) -> None:
        self._barrier = threading.Barrier(replicas)
        self._grads: list[list[Tensor]] = [[] for _ in range(replicas)]
        self._sums: list[tuple[float, ...]] = [() for _ in range(replicas)]

    def gather(
        self, rank: int, parameters: Sequence[Parameter], sums: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Wait for all replicas, then replace this one's gradients by the averaged ones.

        Args:
            rank: which replica the calling thread is.
            parameters: its parameters, in the order that all replicas share.
            sums: numbers to be summed over the replicas; the first is the weight of its batch.

        Returns:
            `sums` summed over the replicas.

        Raises:
            Stopped: after `abort`.
        """
        self._grads[rank] = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._sums[rank] = sums
        self.meet()
        totals = tuple(sum(column) for column in zip(*self._sums, strict=True))
        for p, *grads in zip(parameters, *self._grads, strict=True):
            # A batch without a single label has weight 0 and gradient 0.
            p.grad = _ordered_sum(grads, p.device).div_(totals[0] or 1.0)
        return totals

    def meet(self) -> None:
        """Wait until all replicas are here: with their gradients made, or with their step done.

        The second keeps gradients alive until all have read them. And no replica steps while
        another compiles in its next forward: torch's AdamW branches on
        `torch.compiler.is_compiling()`, which from torch 2.13 on is true in every thread while one
        compiles.

        Raises:
            Stopped: after `abort`.
        """
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise Stopped from None

    def abort(self) -> None:
        """End every wait, present and future, with `Stopped`."""
        self._barrier.abort()


def _ordered_sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    total = tensors[0].to(device, copy=True)
    for tensor in tensors[1:]:
        total += tensor.to(device)
    return total
