"""AdamW for bfloat16 weights with float32 masters: two passes over memory for a whole step.

The first reads the gradients (2 bytes a parameter) for their norm; the second clips, updates and
casts: it reads gradient, master and both moments (14 bytes) and writes the last three and the
weight (14). 30 bytes for each of the 537 million parameters of a drafter for Qwen3-4B are 16.1 GB,
3.8 ms at the 4.26 TB/s that copies reach on an H200. One operation after another over float32
copies of the gradients moves about 52 bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

UNIT: Final = 16
"""What sizes of parameters have to be multiples of, as the kernels' accesses are that wide."""
_TILE: Final = 2048


class FusedAdamW:
    """Updates bfloat16 parameters, float32 masters and their moments in place, on one device.

    The formulas are those of `torch.optim.AdamW` and `torch.nn.utils.clip_grad_norm_`.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        masters: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
    ) -> None:
        """Take the tensors to be updated; they must stay where they are.

        The kernels are compiled here, one after another, before threads could do so at once.

        Args:
            parameters: bfloat16.
            masters: float32, one for each parameter, with its shape; so are the other two.
            means: first moments.
            squares: second moments.

        Raises:
            ValueError: for tensors that the kernels cannot take.
        """
        self._parameters = list(parameters)
        self._kept = (self._parameters, list(masters), list(means), list(squares))
        for tensors, dtype in zip(self._kept, (torch.bfloat16, *[torch.float32] * 3), strict=True):
            _check(tensors, dtype)
        self.device = self._parameters[0].device
        self._tables = [self._table(tensors) for tensors in self._kept]
        sizes = [p.numel() for p in self._parameters]
        self._sizes_P = torch.tensor([size // UNIT for size in sizes], device=self.device)
        tiles = [math.ceil(size / _TILE) for size in sizes]
        self._tensor_of_tile = torch.repeat_interleave(
            torch.arange(len(sizes), dtype=torch.int32), torch.tensor(tiles)
        ).to(self.device)
        self._place_of_tile = torch.cat(
            [torch.arange(count, dtype=torch.int32) for count in tiles]
        ).to(self.device)
        self._partial_sums = torch.empty(len(self._place_of_tile), device=self.device)
        self._gradients: list[Tensor] = []
        self._compile()

    def clip(self, gradients: Sequence[Tensor], *, weight: float, max_norm: float) -> Tensor:
        """Find how much to shrink a step's gradients; they are only read, by `update` too.

        Args:
            gradients: bfloat16, one for each parameter, with its shape.
            weight: what they are yet to be divided by.
            max_norm: that the divided gradients' global norm is clipped to.

        Returns:
            The norm of the divided gradients before clipping: float32, on the device.

        Raises:
            ValueError: for gradients that the kernels cannot take.
        """
        if [g.shape for g in gradients] != [p.shape for p in self._parameters]:
            raise ValueError("gradients and parameters differ in shape")
        self._gradients = [g.contiguous() for g in gradients]
        _check(self._gradients, torch.bfloat16)
        self._gradient_table = self._table(self._gradients)
        norm = self._norm(self._gradient_table) / weight
        # As clip_grad_norm_ has it: with 1e-6, and never enlarging.
        self._scale = (max_norm / (norm + 1e-6)).clamp(max=1.0) / weight
        return norm

    def update(
        self, *, t: int, lr: float, weight_decay: float, betas: tuple[float, float], eps: float
    ) -> None:
        """Update by the gradients that were last given to `clip`, and forget them.

        Nothing is updated if their norm was not finite, which need not be known yet where this is
        called.

        Args:
            t: the number of this step, from 1.
            lr: learning rate.
            weight_decay: decoupled.
            betas: decay of the moments.
            eps: added to the root of the second moment.
        """
        self._update(t, lr, weight_decay, betas, eps, tiles=len(self._place_of_tile))
        self._gradients = []

    def _norm(self, table: Tensor) -> Tensor:
        from dflash_min.fused import kernels

        with torch.cuda.device_of(table):  # type: ignore[no-untyped-call]
            kernels.sum_of_squares_kernel[len(self._place_of_tile),](
                table,
                self._sizes_P,
                self._tensor_of_tile,
                self._place_of_tile,
                self._partial_sums,
                BLOCK=_TILE,
            )
        return self._partial_sums.sum().sqrt()

    def _update(
        self,
        t: int,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        *,
        tiles: int,
    ) -> None:
        from dflash_min.fused import kernels

        with torch.cuda.device_of(self._scale):  # type: ignore[no-untyped-call]
            kernels.adamw_kernel[tiles,](
                self._gradient_table,
                *self._tables,
                self._sizes_P,
                self._tensor_of_tile,
                self._place_of_tile,
                self._scale,
                1.0 - lr * weight_decay,
                lr / (1.0 - betas[0] ** t),
                math.sqrt(1.0 - betas[1] ** t),
                BETA1=betas[0],
                BETA2=betas[1],
                EPS=eps,
                BLOCK=_TILE,
            )

    def _compile(self) -> None:
        """Launch both kernels as `step` does, the second one on a parameter without elements."""
        # Addresses of bfloat16 tensors, as those of gradients are.
        self._gradient_table = self._tables[0]
        self._scale = self._norm(self._gradient_table)
        sizes_P, self._sizes_P = self._sizes_P, torch.zeros_like(self._sizes_P)
        self._update(1, 0.0, 0.0, (0.9, 0.999), 1e-8, tiles=1)
        self._sizes_P = sizes_P

    def _table(self, tensors: Sequence[Tensor]) -> Tensor:
        addresses = torch.tensor(
            [tensor.data_ptr() for tensor in tensors], pin_memory=self.device.type == "cuda"
        )
        # From memory that is not pinned, a copy would wait for the whole backward.
        return addresses.to(self.device, non_blocking=True)


def fits(parameters: Sequence[Tensor]) -> bool:
    """Return whether the kernels can take these parameters: bfloat16, and sized in whole units."""
    return all(p.dtype == torch.bfloat16 and p.numel() % UNIT == 0 for p in parameters)


def _check(tensors: Sequence[Tensor], dtype: torch.dtype) -> None:
    for tensor in tensors:
        if tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(f"a contiguous {dtype} tensor is needed, not {tensor.dtype}")
        if tensor.data_ptr() % UNIT or tensor.numel() % UNIT:
            raise ValueError(f"a tensor of {tensor.numel()} elements is not in units of {UNIT}")
