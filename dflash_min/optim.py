"""AdamW, its learning rate over the steps, and one gradient for all replicas."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import torch

from dflash_min.errors import NotFiniteError, Stopped
from dflash_min.fused.adamw import FusedAdamW, fits
from dflash_min.readback import Readback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor
    from torch.nn import Parameter

    from dflash_min.resolve import Resolved


def lr_share(step: int, steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a step (from 0): linear rise, cosine to 0.

    This is the schedule of the DFlash paper (arXiv 2602.06036, A.1), where `warmup` is 0.04.
    """
    rise = math.ceil(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


class Optimizer:
    """AdamW on one replica's parameters, with gradients clipped by their global norm.

    Parameters in bfloat16 are the rounded copies of float32 masters, which are what is trained: an
    update of less than 1/256 of a weight would otherwise be lost.
    """

    def __init__(self, parameters: Sequence[Parameter], resolved: Resolved) -> None:
        """Make the masters, and moments of 0, on the parameters' device."""
        self._parameters = list(parameters)
        self._resolved = resolved
        self.divides = resolved.dtype != "float32"
        """Whether `step` divides the gradients by the weight, so that `Average` need not."""
        self._masters: list[Tensor] = [
            p.detach().float() if self.divides else p for p in self._parameters
        ]
        self._adamw = torch.optim.AdamW(
            self._masters, lr=resolved.lr, weight_decay=resolved.weight_decay
        )
        self._fused: FusedAdamW | None = None
        self._fuse()

    def step(self, step: int, weight: float = 1.0) -> None:
        """Apply the gradients of step `step` (from 0) and drop them.

        Args:
            step: sets the learning rate.
            weight: what the gradients have yet to be divided by, if this optimiser `divides`.

        Raises:
            NotFiniteError: if a gradient is not finite; no weight has changed.
        """
        resolved = self._resolved
        for group in self._adamw.param_groups:
            group["lr"] = resolved.lr * lr_share(step, resolved.steps, resolved.lr_warmup)
        if self._fused is None:
            self._step(step, weight or 1.0)
        else:
            self._step_fused(self._fused, step, weight or 1.0)
        for p in (*self._parameters, *self._masters):
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers from which `load_state_dict` goes on with equal bits."""
        state: dict[str, Any] = {"adamw": self._adamw.state_dict()}
        if self.divides:
            state["masters"] = self._masters
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of an optimiser of the same parameters, whatever device it was on.

        Raises:
            ValueError: if the state is of other parameters.
        """
        masters = state.get("masters", [])
        if [m.shape for m in masters] != [m.shape for m in self._masters if self.divides]:
            raise ValueError("the optimiser's state is of weights of other sizes or another dtype")
        self._adamw.load_state_dict(state["adamw"])
        for mine, loaded in zip(self._masters, masters, strict=False):
            mine.copy_(loaded)
        self._fuse()

    def _step(self, step: int, weight: float) -> None:
        """Take one operation after another, as torch has them."""
        if self.divides:
            for master, p in zip(self._masters, self._parameters, strict=True):
                master.grad = None if p.grad is None else p.grad.float().div_(weight)
                p.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self._resolved.max_grad_norm)
        _check_finite(float(norm), step)
        self._adamw.step()
        if self.divides:
            for master, p in zip(self._masters, self._parameters, strict=True):
                p.detach().copy_(master)

    def _step_fused(self, fused: FusedAdamW, step: int, weight: float) -> None:
        group = self._adamw.param_groups[0]
        norm = fused.clip(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters],
            weight=weight,
            max_norm=self._resolved.max_grad_norm,
        )
        found = Readback(norm[None])
        fused.update(
            t=int(next(iter(self._adamw.state.values()))["step"]) + 1,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            betas=group["betas"],
            eps=group["eps"],
        )
        _check_finite(found.tolist()[0], step)
        for state in self._adamw.state.values():
            state["step"] += 1

    def _fuse(self) -> None:
        """Let the kernels work on AdamW's own state, if they are asked for and can be used."""
        on_gpu = self._masters[0].device.type == "cuda"
        if not (on_gpu and "optimizer" in self._resolved.fused and fits(self._parameters)):
            return
        states = [self._adamw.state[master] for master in self._masters]
        for master, state in zip(self._masters, states, strict=True):
            state.setdefault("step", torch.tensor(0.0))
            state.setdefault("exp_avg", torch.zeros_like(master))
            state.setdefault("exp_avg_sq", torch.zeros_like(master))
        self._fused = FusedAdamW(
            [p.detach() for p in self._parameters],
            self._masters,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
        )


def _check_finite(norm: float, step: int) -> None:
    if not math.isfinite(norm):
        raise NotFiniteError(f"step {step + 1}: the norm of the gradients is {norm}")


class Accumulator:
    """Adds up a replica's gradients over several backwards in float32, and rounds the sum once.

    Autograd adds in the gradients' own dtype: in bfloat16 what is less than 1/256 of the sum so far
    is lost. Gradients in float32 are left to autograd.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        """Take the parameters, on whose device the sums are kept."""
        self._parameters = [p for p in parameters if p.dtype.itemsize < torch.float32.itemsize]
        self._sums: list[Tensor | None] = [None] * len(self._parameters)

    def add(self) -> None:
        """Take over what a backward has left in the parameters' gradients."""
        for i, p in enumerate(self._parameters):
            if p.grad is not None:
                total = self._sums[i]
                self._sums[i] = p.grad.float() if total is None else total.add_(p.grad)
                p.grad = None

    def finish(self) -> None:
        """Make the sums the parameters' gradients, and forget them."""
        for i, p in enumerate(self._parameters):
            total, self._sums[i] = self._sums[i], None
            p.grad = None if total is None else total.to(p.dtype)


class Average:
    """Gives every replica the gradient that one replica would have on all their batches.

    Each replica differentiates its sum of weighted token losses, not the mean: replicas with more
    weight then count for more, as in the summed batch. All replicas add the sums in rank order and
    divide by the summed weight, unless the optimiser does, so that they get equal bits where their
    devices are of one kind.

    On CUDA, reading another thread's gradients needs no event: all threads use each device's
    default stream, a copy between devices runs in both, and the meeting orders the launches.
    """

    def __init__(self, replicas: int, *, mean: bool = True) -> None:
        """Prepare for so many replicas.

        Args:
            replicas: how many meet.
            mean: whether to divide by the summed weight. Without it one replica's gradients are
                left as they are, and not even copied.
        """
        self._mean = mean
        self._barrier = threading.Barrier(replicas)
        self._lock = threading.Lock()
        self._read = 0
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
            p.grad = _ordered_sum(grads, p.device)
            if self._mean:
                # A batch without a single label has weight 0 and gradient 0.
                p.grad.div_(totals[0] or 1.0)
        self._forget_when_all_have_read()
        return totals

    def meet(self) -> None:
        """Wait until all replicas are here: with their gradients made, or with their step done.

        The second keeps the sums of a step until all have read them. And no replica steps while
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

    def _forget_when_all_have_read(self) -> None:
        """Let go of what the last reader has read: the next gradients want its memory."""
        with self._lock:
            self._read = (self._read + 1) % len(self._grads)
            if self._read == 0:
                self._grads = [[] for _ in self._grads]


def _ordered_sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Add in float32 or wider, and round once."""
    first, *rest = tensors
    if not rest:
        return first
    # Of two numbers the sum in bfloat16 is the rounded sum in float32.
    wide = first.dtype if len(rest) == 1 else torch.promote_types(first.dtype, torch.float32)
    total = first.to(device, wide) + rest[0].to(device)
    for tensor in rest[1:]:
        total += tensor.to(device)
    return total.to(first.dtype)
