"""Ways from one GPU to another beside the streams in which both compute.

A copy between devices waits for the current streams of both, and both for it. In the streams that
compute, a GPU would then stand still until another has done all that it was given before.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class Lane:
    """A stream at each end, for the copies that go one way."""

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self.here: torch.cuda.Stream = torch.cuda.Stream(source)  # type: ignore[no-untyped-call]
        self.there: torch.cuda.Stream = torch.cuda.Stream(target)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Let copies between the two devices run in the lane, and tensors be made at its end."""
        with torch.cuda.stream(self.there), torch.cuda.stream(self.here):
            yield

    def move(self, tensor: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Copy what the source's current stream makes, without waiting on the host.

        Returns:
            The copy, and an event on the target after which it is there. A stream that uses it has
            to wait for the event, and to be told to the copy's memory (`Tensor.record_stream`).
        """
        self.here.wait_stream(torch.cuda.current_stream(tensor.device))
        with self.copying():
            moved = tensor.to(self.there.device, non_blocking=True)
        # The source's memory is used again in the order of the stream that it was made in.
        tensor.record_stream(self.here)
        return moved, self.there.record_event()


def between(source: torch.device, target: torch.device) -> Lane | None:
    """Return a lane from one GPU to another; None where there is nothing to go beside."""
    if source.type != "cuda" or target.type != "cuda" or source == target:
        return None
    return Lane(source, target)
