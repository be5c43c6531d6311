"""Gradients on their way to the other replicas while the backward still runs.

`gradients.InPlace` reads the other replicas' gradients when all backwards have ended, and every
device stands still meanwhile: a replica of a drafter for Qwen3-4B reads 1.07 GB of each other one.
Here a gradient is sent when the backward has made it. On each device there is room for the
gradients of all other replicas, from the beginning of the training to its end.

Copies run on streams of their own. The streams that compute wait for them where the gradients are
read: a receiver's for what it reads, a sender's because its next backward may write to the memory
that is sent, as a replayed CUDA graph does.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING

import torch

from dflash_min.gradients import gradient_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.nn import Parameter
    from torch.utils.hooks import RemovableHandle


class Exchange:
    """A `gradients.Road` on which each gradient is sent as soon as it is made, in `sending`."""

    def __init__(self, replicas: Sequence[Sequence[Parameter]]) -> None:
        """Make room for the gradients.

        Args:
            replicas: each one's parameters, in the order that all share; one device a replica.
        """
        self._replicas = [list(parameters) for parameters in replicas]
        self._sent: list[set[int]] = [set() for _ in self._replicas]
        self._lanes = {
            (source, target): _Lane(self._replicas[source], self._replicas[target][0].device)
            for source, target in itertools.permutations(range(len(self._replicas)), 2)
        }

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Send what backwards make for as long as the context lasts."""
        hooks: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(self._send, rank, index)
            )
            for rank, parameters in enumerate(self._replicas)
            for index, p in enumerate(parameters)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def release(self) -> None:
        """Give the memory back, once no backward of any replica is under way."""
        for lane in self._lanes.values():
            lane.arrived()
        self._lanes = {}

    def offer(self, rank: int) -> None:
        """Do nothing: all has been sent."""

    def received(self, rank: int) -> Sequence[Sequence[Tensor]]:
        """Return all gradients on the replica's device, after what the current stream does now."""
        everyones = []
        for source, parameters in enumerate(self._replicas):
            if source == rank:
                everyones.append([gradient_of(p) for p in parameters])
                continue
            places = self._lanes[source, rank].arrived()
            everyones.append(
                [
                    place if index in self._sent[source] else torch.zeros_like(place)
                    for index, place in enumerate(places)
                ]
            )
        for lane in self._of(source=rank):
            lane.left()
        return everyones

    def read(self, rank: int) -> None:
        """Let the others send again, once the current stream has done what it has to do now."""
        for (_, target), lane in self._lanes.items():
            if target == rank:
                lane.free()

    def forget(self) -> None:
        """Begin a new step, in which nothing has been sent."""
        for sent in self._sent:
            sent.clear()

    def _of(self, source: int) -> list[_Lane]:
        return [lane for (from_, _), lane in self._lanes.items() if from_ == source]

    def _send(self, rank: int, index: int, parameter: Tensor) -> None:
        """Take over a gradient from the thread that differentiates, right after it was made."""
        assert parameter.grad is not None
        for lane in self._of(source=rank):
            lane.send(index, parameter.grad)
        self._sent[rank].add(index)


class _Lane:
    """From one replica to the device of another. On a CPU a copy is over when it is asked for."""

    def __init__(self, parameters: Sequence[Parameter], target: torch.device) -> None:
        self._places = [torch.empty_like(p, device=target) for p in parameters]
        self._source, self._target = parameters[0].device, target
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        if target.type == "cuda":
            ends = self._source, target
            here, there = (torch.cuda.Stream(end) for end in ends)  # type: ignore[no-untyped-call]
            self._streams = here, there
            # The places' memory may have been another tensor's, which is still in use over there.
            self.free()

    def send(self, index: int, gradient: Tensor) -> None:
        """Copy a gradient to its place, after what its device has been given to do before."""
        if self._streams is None:
            self._places[index].copy_(gradient)
            return
        here, there = self._streams
        here.wait_stream(torch.cuda.current_stream(self._source))
        there.wait_event(self._free)
        # A copy between devices waits for the current streams of both, and both for it.
        with torch.cuda.stream(there), torch.cuda.stream(here):
            self._places[index].copy_(gradient, non_blocking=True)

    def left(self) -> None:
        """Let the source's current stream wait until all that was sent has been read."""
        if self._streams is not None:
            torch.cuda.current_stream(self._source).wait_stream(self._streams[0])

    def arrived(self) -> list[Tensor]:
        """Let the target's current stream wait for what was sent; return it."""
        if self._streams is not None:
            torch.cuda.current_stream(self._target).wait_stream(self._streams[1])
        return self._places

    def free(self) -> None:
        """Let the places be written once the target's current stream has done what it has now."""
        if self._streams is not None:
            self._free = torch.cuda.current_stream(self._target).record_event()
