"""Gradients on their way to the other replicas while the backward still runs.

`gradients.Average` reads the other replicas' gradients when all backwards have ended, and every
device stands still meanwhile: a replica of a drafter for Qwen3-4B receives 1.07 GB from each other
one. Here a gradient is sent when the backward has made it. It is kept on the receiving device until
it is read, which takes as much memory there as the gradients of all other replicas.

Copies run on streams of their own. Of the streams that compute, a sender's is not waited for by any
other, and a receiver's waits for the copies where the gradients are read.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from torch import Tensor
    from torch.nn import Parameter
    from torch.utils.hooks import RemovableHandle


class Exchange:
    """Sends each replica's gradients to all others. Gradients are sent inside of its context.

    A thread for each replica differentiates, meets the others, calls `received`, reads, calls
    `read`, and meets the others again.
    """

    def __init__(self, replicas: Sequence[Sequence[Parameter]]) -> None:
        """Make room for the gradients.

        Args:
            replicas: each one's parameters, in the order that all share; one device a replica.
        """
        self._replicas = [list(parameters) for parameters in replicas]
        self._devices = [parameters[0].device for parameters in self._replicas]
        self._sent: list[set[int]] = [set() for _ in self._replicas]
        self._roads = {
            (source, target): _Road(self._replicas[source], self._devices[target])
            for source, target in itertools.permutations(range(len(self._replicas)), 2)
        }
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> None:
        """Send what backwards make from now on."""
        self._hooks = [
            p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(self._send, rank, index)
            )
            for rank, parameters in enumerate(self._replicas)
            for index, p in enumerate(parameters)
        ]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send nothing any more."""
        for hook in self._hooks:
            hook.remove()

    def received(self, rank: int) -> list[list[Tensor]]:
        """Return all replicas' gradients on the device of one of them, in order of their ranks.

        A parameter that had no part in a replica's backward has zeros there. The gradients of the
        others are good until `read`; the calling thread's stream waits until they are there.
        """
        everyones = []
        for source, parameters in enumerate(self._replicas):
            if source == rank:
                everyones.append(
                    [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
                )
                continue
            places = self._roads[source, rank].arrived()
            everyones.append(
                [
                    place if index in self._sent[source] else torch.zeros_like(place)
                    for index, place in enumerate(places)
                ]
            )
        return everyones

    def read(self, rank: int) -> None:
        """Let the others send to this replica again, once its device has read what was there."""
        for (_, target), road in self._roads.items():
            if target == rank:
                road.read()

    def forget(self) -> None:
        """Begin a new step. To be called by one thread, when all have called `received`."""
        for sent in self._sent:
            sent.clear()

    def _send(self, rank: int, index: int, parameter: Tensor) -> None:
        """Take over a gradient from the thread that differentiates, right after it was made."""
        assert parameter.grad is not None
        for (source, _), road in self._roads.items():
            if source == rank:
                road.send(index, parameter.grad)
        self._sent[rank].add(index)


class _Road:
    """From one replica to the device of another."""

    def __init__(self, parameters: Sequence[Parameter], target: torch.device) -> None:
        self._places = [torch.empty_like(p, device=target) for p in parameters]
        self._target = target
        self._read: torch.cuda.Event | None = None
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        if target.type == "cuda":
            ends = parameters[0].device, target
            here, there = (torch.cuda.Stream(end) for end in ends)  # type: ignore[no-untyped-call]
            self._streams = here, there

    def send(self, index: int, gradient: Tensor) -> None:
        """Copy a gradient to its place, after what its device has been given to do before."""
        if self._streams is None:
            self._places[index].copy_(gradient)
            return
        here, there = self._streams
        here.wait_stream(torch.cuda.current_stream(gradient.device))
        if self._read is not None:
            there.wait_event(self._read)
        gradient.record_stream(here)
        # A copy between devices waits for the current streams of both, and both for it.
        with torch.cuda.stream(there), torch.cuda.stream(here):
            self._places[index].copy_(gradient, non_blocking=True)

    def arrived(self) -> list[Tensor]:
        """Let the current stream wait for what was sent; return it."""
        if self._streams is not None:
            torch.cuda.current_stream(self._target).wait_stream(self._streams[1])
        return self._places

    def read(self) -> None:
        """Note that the places may be written again after what the current stream does now."""
        if self._streams is not None:
            self._read = torch.cuda.current_stream(self._target).record_event()
