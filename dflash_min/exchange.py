"""Gradients on their way to the other replicas while the backward still runs.

`gradients.InPlace` reads the other replicas' gradients when all backwards have ended, and every
device stands still meanwhile: a replica of a drafter for Qwen3-4B reads 1.07 GB of each other one.
Here gradients are collected into buckets, and a bucket is sent when the backward has filled it. On
each device there is room for the gradients of all replicas, from the beginning of the training to
its end.

Copies run on streams of their own. The streams that compute wait for them where buckets are read:
a receiver's for what it reads, a sender's because its next backward fills the bucket again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Final

import torch

from dflash_min import lanes
from dflash_min.gradients import gradient_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.nn import Parameter
    from torch.utils.hooks import RemovableHandle

BUCKET_BYTES: Final = 64 << 20
"""A copy costs its thread up to 160 microseconds where two threads copy at once, so that between
two H200s 58 gradients of 1.07 GB took 9.2 ms both ways at once, 17 buckets of this size 3.3, and
one of all 2.9; but what the backward makes last is sent when nothing else is left to do."""


class Exchange:
    """A `gradients.Road` on which buckets of gradients are sent once full, inside of `sending`."""

    def __init__(
        self, replicas: Sequence[Sequence[Parameter]], *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        """Make room for the gradients.

        Args:
            replicas: each one's parameters, of one dtype and in the order that all share; one
                device a replica.
            bucket_bytes: how large a bucket of several gradients may be.
        """
        buckets = _buckets(replicas[0], bucket_bytes)
        self._outboxes = [_Outbox(parameters, buckets) for parameters in replicas]
        self._incoming: list[dict[int, _Places]] = [{} for _ in replicas]
        for source, target in itertools.permutations(range(len(replicas)), 2):
            places = _Places(self._outboxes[source].contents, replicas[target][0].device)
            self._outboxes[source].goes_to.append(places)
            self._incoming[target][source] = places

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Send what backwards make for as long as the context lasts, one backward for each step."""
        hooks: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(self._made, rank, index)
            )
            for rank, outbox in enumerate(self._outboxes)
            for index, p in enumerate(outbox.parameters)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def release(self) -> None:
        """Give the memory back, once no backward of any replica is under way."""
        for incoming in self._incoming:
            for places in incoming.values():
                places.left()
                places.arrived()
            incoming.clear()
        for outbox in self._outboxes:
            outbox.goes_to.clear()
            outbox.contents.clear()

    def offer(self, rank: int) -> None:
        """Send the buckets that the backward has not filled, with zeros for what is missing."""
        self._outboxes[rank].close()

    def received(self, rank: int) -> Sequence[Sequence[Tensor]]:
        """Return all buckets on the replica's device, after what the current stream does now."""
        incoming = self._incoming[rank]
        everyones = [
            outbox.contents if source == rank else incoming[source].arrived()
            for source, outbox in enumerate(self._outboxes)
        ]
        for places in self._outboxes[rank].goes_to:
            places.left()
        return everyones

    def put(self, rank: int, pieces: Sequence[Tensor]) -> None:
        """Make the sums the replica's gradients, which are views of them."""
        self._outboxes[rank].put(pieces)

    def read(self, rank: int) -> None:
        """Let the others send again, once the current stream has done what it has to do now."""
        for places in self._incoming[rank].values():
            places.free()

    def forget(self) -> None:
        """Do nothing: buckets are filled again."""

    def _made(self, rank: int, index: int, _: Tensor) -> None:
        """Take over a gradient from the thread that differentiates, right after it was made."""
        self._outboxes[rank].add(index)


class _Bucket:
    """Parameters whose gradients travel side by side in one tensor."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.sizes: list[int] = []


def _buckets(parameters: Sequence[Parameter], most: int) -> list[_Bucket]:
    """Share out parameters from the last to the first, which is how a backward goes."""
    buckets: list[_Bucket] = []
    room = 0
    for index in reversed(range(len(parameters))):
        p = parameters[index]
        size = p.numel() * p.element_size()
        if not buckets or size > room:
            buckets.append(_Bucket())
            room = most
        buckets[-1].indices.append(index)
        buckets[-1].sizes.append(p.numel())
        room -= size
    return buckets


class _Outbox:
    """A replica's buckets, each of which leaves when it has all its gradients."""

    def __init__(self, parameters: Sequence[Parameter], buckets: Sequence[_Bucket]) -> None:
        self.parameters = parameters
        self.goes_to: list[_Places] = []
        self._buckets = buckets
        first = parameters[0]
        self.contents = [first.new_empty(sum(bucket.sizes)) for bucket in buckets]
        self._bucket_of = {
            index: number for number, bucket in enumerate(buckets) for index in bucket.indices
        }
        self._missing = self._all()
        # Recorded anew for each bucket: to make an event costs more. A stream that waits for one
        # waits for what was recorded when it was told to (cudaStreamWaitEvent).
        self._filled = torch.cuda.Event() if first.is_cuda else None  # type: ignore[no-untyped-call]

    def add(self, index: int) -> None:
        """Note that a parameter has its gradient; send the bucket if it was the last."""
        number = self._bucket_of[index]
        if index not in self._missing[number]:
            raise RuntimeError("a second backward in one step, whose gradients are sent already")
        self._missing[number].remove(index)
        if not self._missing[number]:
            self._send(number)

    def close(self) -> None:
        """Send what has not left, and begin anew."""
        for number, missing in enumerate(self._missing):
            if missing:
                self._send(number)
        self._missing = self._all()

    def put(self, pieces: Sequence[Tensor]) -> None:
        """Make pieces of the buckets' sizes the parameters' gradients."""
        for bucket, piece in zip(self._buckets, pieces, strict=True):
            for index, part in zip(bucket.indices, torch.split(piece, bucket.sizes), strict=True):
                p = self.parameters[index]
                p.grad = part.view_as(p)

    def _all(self) -> list[set[int]]:
        return [set(bucket.indices) for bucket in self._buckets]

    def _send(self, number: int) -> None:
        """Fill a bucket, which the gradients are moved to, and let it go to all others."""
        parameters = [self.parameters[index] for index in self._buckets[number].indices]
        content = self.contents[number]
        torch.cat([gradient_of(p).flatten() for p in parameters], out=content)
        for p in parameters:
            p.grad = None
        if self._filled is not None:
            self._filled.record(torch.cuda.current_stream(content.device))
        for places in self.goes_to:
            places.send(number, content, self._filled)


class _Places:
    """On one device, of another's buckets. On a CPU a copy is over when it is asked for."""

    def __init__(self, contents: Sequence[Tensor], target: torch.device) -> None:
        self._places = [torch.empty_like(content, device=target) for content in contents]
        self._source, self._target = contents[0].device, target
        self._lane = lanes.between(self._source, target)
        # The places' memory may have been another tensor's, which is still in use over there.
        self.free()

    def send(self, number: int, content: Tensor, filled: torch.cuda.Event | None) -> None:
        """Copy a bucket to its place, after the event on a GPU that it has been filled."""
        if self._lane is None or filled is None:
            self._places[number].copy_(content)
            return
        self._lane.here.wait_event(filled)
        with self._lane.copying():
            self._places[number].copy_(content, non_blocking=True)

    def left(self) -> None:
        """Let the source's current stream wait until all that was sent has been read."""
        if self._lane is not None:
            torch.cuda.current_stream(self._source).wait_stream(self._lane.here)

    def arrived(self) -> list[Tensor]:
        """Let the target's current stream wait for what was sent; return it."""
        if self._lane is not None:
            torch.cuda.current_stream(self._target).wait_stream(self._lane.there)
        return self._places

    def free(self) -> None:
        """Let the places be written once the target's current stream has done what it has now."""
        if self._lane is not None:
            self._lane.there.wait_stream(torch.cuda.current_stream(self._target))
