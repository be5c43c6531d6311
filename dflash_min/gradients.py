"""One gradient for all replicas: of several batches, and of all drafters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import torch

from dflash_min import observe
from dflash_min.meeting import Meeting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.nn import Parameter


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


class Road(Protocol):
    """How replicas come to each other's gradients.

    In each step every replica's thread calls `offer` when its backward has ended, meets the others,
    calls `received`, adds up piece by piece what that returns, calls `put` with the sums and
    `read`, and, when one of them has called `forget`, meets the others again.
    """

    def offer(self, rank: int) -> None:
        """Let the others have a replica's gradients, which are all made."""

    def received(self, rank: int) -> Sequence[Sequence[Tensor]]:
        """Return all replicas' gradients in order of their ranks, as one replica may read them.

        In pieces of the road's own choice, which are the same for all replicas. A parameter that
        had no part in a replica's backward has zeros.
        """

    def put(self, rank: int, pieces: Sequence[Tensor]) -> None:
        """Make tensors like one replica's pieces a replica's gradients."""

    def read(self, rank: int) -> None:
        """Note that a replica's device has been given everything that reads them."""

    def forget(self) -> None:
        """Let the gradients go; called by one thread, when all have called `read`."""


class InPlace:
    """Replicas read each other's gradients where they are, when all backwards have ended.

    On CUDA, reading another thread's gradients needs no event: all threads use each device's
    default stream, a copy between devices runs in both, and the meeting orders the launches.
    """

    def __init__(self, replicas: Sequence[Sequence[Parameter]]) -> None:
        """Take each replica's parameters, in the order that all share."""
        self._replicas = replicas
        self._grads: list[list[Tensor]] = [[] for _ in replicas]

    def offer(self, rank: int) -> None:
        """Hold a replica's gradients until `forget`."""
        self._grads[rank] = [gradient_of(p) for p in self._replicas[rank]]

    def received(self, rank: int) -> Sequence[Sequence[Tensor]]:
        """Return all gradients, wherever they are."""
        del rank
        return self._grads

    def put(self, rank: int, pieces: Sequence[Tensor]) -> None:
        """Give each parameter its gradient."""
        for p, piece in zip(self._replicas[rank], pieces, strict=True):
            p.grad = piece

    def read(self, rank: int) -> None:
        """Do nothing: what follows on the gradients' device follows in its stream."""

    def forget(self) -> None:
        """Let go of all gradients: the next ones want their memory."""
        self._grads = [[] for _ in self._grads]


class Average:
    """Gives every replica the gradient that one replica would have on all their batches.

    Each replica differentiates its sum of weighted token losses, not the mean: replicas with more
    weight then count for more, as in the summed batch. All replicas add the sums in rank order and
    divide by the summed weight, unless the optimiser does, so that they get equal bits where their
    devices are of one kind.
    """

    def __init__(
        self,
        replicas: Sequence[Sequence[Parameter]],
        *,
        mean: bool = True,
        road: Road | None = None,
    ) -> None:
        """Prepare for so many replicas.

        Args:
            replicas: the parameters of each, in the order that all share.
            mean: whether to divide by the summed weight. Without it one replica's gradients are
                left as they are, and not even copied.
            road: how gradients come to the others; in place, if not given.
        """
        self._replicas = replicas
        self._mean = mean
        self._road: Road = InPlace(replicas) if road is None else road
        self._meeting = Meeting(len(replicas))
        self._lock = threading.Lock()
        self._read = 0
        self._sums: list[tuple[float, ...]] = [() for _ in replicas]

    def gather(self, rank: int, sums: tuple[float, ...]) -> tuple[float, ...]:
        """Wait for all replicas, then replace this one's gradients by the averaged ones.

        Args:
            rank: which replica the calling thread is.
            sums: numbers to be summed over the replicas; the first is the weight of its batch.

        Returns:
            `sums` summed over the replicas.

        Raises:
            Stopped: after `abort`.
        """
        self._road.offer(rank)
        self._sums[rank] = sums
        self.meet()
        totals = tuple(sum(column) for column in zip(*self._sums, strict=True))
        device = self._replicas[rank][0].device
        pieces = [
            _ordered_sum(alike, device) for alike in zip(*self._road.received(rank), strict=True)
        ]
        if self._mean:
            for piece in pieces:
                # A batch without a single label has weight 0 and gradient 0.
                piece.div_(totals[0] or 1.0)
        self._road.put(rank, pieces)
        self._road.read(rank)
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
        with observe.waiting("drafters"):
            self._meeting.wait()

    def abort(self) -> None:
        """End every wait for replicas that have not come, present and future, with `Stopped`."""
        self._meeting.abort()

    def _forget_when_all_have_read(self) -> None:
        with self._lock:
            self._read = (self._read + 1) % len(self._replicas)
            if self._read == 0:
                self._road.forget()


def gradient_of(p: Parameter) -> Tensor:
    """Return a parameter's gradient, zeros if it had no part in the backward."""
    return torch.zeros_like(p) if p.grad is None else p.grad


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
