"""Numbers on their way from a device to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Readback:
    """A copy of a tensor of one dimension that is begun when this is made and waited for later.

    `Tensor.tolist` on a GPU's tensor waits for all work that was given to the GPU before; the GPU
    then stands still until the thread has given it more. What is made right behind the numbers that
    it reads and asked for when more work was given waits for those numbers only.
    """

    def __init__(self, values: Tensor) -> None:
        """Begin to copy, on the current stream of the tensor's device."""
        self._arrived: torch.cuda.Event | None = None
        if not values.is_cuda:
            self._host = values.detach().clone()
        else:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values.detach(), non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(values.device))

    def tolist(self) -> list[float]:
        """Wait for the copy; return the numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers
