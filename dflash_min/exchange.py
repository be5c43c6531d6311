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
        devices = [parameters[0].device for parameters in self._replicas]
        # Recorded anew for each gradient: to make an event costs more. A stream that waits for one
        # waits for what was recorded when it was told to (cudaStreamWaitEvent).
        self._made = [torch.cuda.Event() if d.type == "cuda" else None for d in devices]  # type: ignore[no-untyped-call]
        self._outgoing: list[list[_Lane]] = [[] for _ in devices]
        self._incoming: list[dict[int, _Lane]] = [{} for _ in devices]
        for source, target in itertools.permutations(range(len(devices)), 2):
            lane = _Lane(self._replicas[source], devices[target])
            self._outgoing[source].append(lane)
            self._incoming[target][source] = lane

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
        for lanes in self._outgoing:
            for lane in lanes:
                lane.arrived()
            lanes.clear()
        for incoming in self._incoming:
            incoming.clear()

    def offer(self, rank: int) -> None:
        """Do nothing: all has been sent."""

    def received(self, rank: int) -> Sequence[Sequence[Tensor]]:
        """Return all gradients on the replica's device, after what the current stream does now."""
        everyones = []
        for source, parameters in enumerate(self._replicas):
            if source == rank:
                everyones.append([gradient_of(p) for p in parameters])
                continue
            places = self._incoming[rank][source].arrived()
            everyones.append(
                [
                    place if index in self._sent[source] else torch.zeros_like(place)
                    for index, place in enumerate(places)
                ]
            )
        for lane in self._outgoing[rank]:
            lane.left()
        return everyones

    def read(self, rank: int) -> None:
        """Let the others send again, once the current stream has done what it has to do now."""
        for lane in self._incoming[rank].values():
            lane.free()

    def forget(self) -> None:
        """Begin a new step, in which nothing has been sent."""
        for sent in self._sent:
            sent.clear()

    def _send(self, rank: int, index: int, parameter: Tensor) -> None:
        """Take over a gradient from the thread that differentiates, right after it was made."""
        gradient, made = parameter.grad, self._made[rank]
        assert gradient is not None
        if made is not None:
            made.record(torch.cuda.current_stream(gradient.device))
        for lane in self._outgoing[rank]:
            lane.send(index, gradient, made)
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

    def send(self, index: int, gradient: Tensor, made: torch.cuda.Event | None) -> None:
        """Copy a gradient to its place, after the event on a GPU that it has been made."""
        if self._streams is None or made is None:
            self._places[index].copy_(gradient)
            return
        here, there = self._streams
        here.wait_event(made)
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
            self._streams[1].wait_stream(torch.cuda.current_stream(self._target))
