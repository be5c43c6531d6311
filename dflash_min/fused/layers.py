"""The drafter with one compiled graph for a whole decoder layer, attention included.

All layers of all replicas on a device run the same graph, so that it is compiled once; its code is
`DecoderLayer.forward`, so that there is nothing to keep equal. Between products and attention the
compiler leaves about ten passes over the activations where the layer has about fifty operations,
each of which reads and writes them. Keeping attention in the graph spares the views at its edges,
whose bases would be compiled in as further sizes.

Of the sizes only the context's length varies. It is padded with zeros to whole tiles of keys and
given as so many times 128, and the number of queries is a constant: the attention kernels then need
not check where a tile ends. No query sees what is padded, since it lies behind every anchor.

First calls are made one at a time, which is the only lock of the trainer around a compile. Which
sizes are constants is said by marks, and torch drops such a mark while any thread compiles: from
2.13 on `mark_static` asks `torch.compiler.is_compiling()`, which is then true in all threads. The
graph would have symbolic sizes throughout, and be slower ever after. Races of compiles are what the
other preset is for: `attention.CompiledAttention` holds no lock.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

# Torch's documented ways to say whether a size may vary; they have no other names.
from torch._dynamo import mark_static, maybe_mark_dynamic

# The documented way to see which options a mode stands for: torch.compile takes one or the other.
from torch._inductor import list_mode_options
from torch.torch_version import TorchVersion

from dflash_min.attention import mark_tile_counts, plain_attention
from dflash_min.fused.mask import TILE
from dflash_min.qwen3 import rotary_angles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask, FlexKernelOptions

    from dflash_min.model import Drafter
    from dflash_min.qwen3 import DecoderLayer, RMSNorm

_FIRST_CALLS: Final = threading.Lock()
"""Held from marking to compiling, whatever the device."""


class FusedDrafter:
    """Runs a drafter's training forward by compiled layers. Threads may share it."""

    def __init__(
        self,
        drafter: Drafter,
        *,
        dynamic: bool | None = True,
        backend: str = "inductor",
        mode: str | None = None,
        fixed_queries: bool = True,
        kernel_options: FlexKernelOptions | None = None,
    ) -> None:
        """Wrap the layer's code; compiling itself happens at the first call on each device.

        Args:
            drafter: on the device where it stays. Its layers are not recomputed in the backward.
            dynamic: as in `torch.compile`.
            backend: as in `torch.compile`.
            mode: as in `torch.compile`; of inductor only.
            fixed_queries: whether the number of queries may be compiled in.
            kernel_options: of `flex_attention`; read on GPUs only.
        """
        self._drafter = drafter
        self._fixed_queries = fixed_queries
        self._called: set[tuple[bool, bool]] = set()
        attention = plain_attention(drafter.fc.weight.device, kernel_options)
        self._layer: Callable[..., Tensor] = torch.compile(
            _layer_with(attention),
            dynamic=dynamic,
            backend=backend,
            options=_options(mode) if backend == "inductor" else None,
        )

    def __call__(
        self,
        block_embeds_BQD: Tensor,
        features_BSF: Tensor,
        positions_BT: Tensor,
        block_mask: BlockMask,
    ) -> Tensor:
        """Return what `Drafter.forward` returns. S must be a multiple of `TILE`: see `padded`.

        Raises:
            ValueError: if it is not.
        """
        drafter, config = self._drafter, self._drafter.config
        if features_BSF.shape[1] % TILE:
            raise ValueError(f"{features_BSF.shape[1]} tokens of context are no whole tiles")
        cos, sin = rotary_angles(positions_BT, config.head_dim, config.rope_theta)
        tiles_BIUF = features_BSF.view(len(features_BSF), -1, TILE, features_BSF.shape[2])
        context_BIUD = _norm(drafter.hidden_norm, drafter.fc(tiles_BIUF))
        # The first layer's input needs no gradient. Without one it would be a graph of its own.
        hidden_BQD = block_embeds_BQD.detach().requires_grad_(torch.is_grad_enabled())
        with self._alone_at_first():
            _mark(context_BIUD, varying=1)
            _mark(cos, varying=2)
            _mark(sin, varying=2)
            mark_tile_counts(block_mask)
            for layer in drafter.layers:
                _mark(hidden_BQD, varying=None if self._fixed_queries else 1)
                hidden_BQD = self._layer(layer, hidden_BQD, cos, sin, context_BIUD, block_mask)
        return _norm(drafter.norm, hidden_BQD)

    @contextlib.contextmanager
    def _alone_at_first(self) -> Iterator[None]:
        """Keep other first calls out of one that compiles: the first with or without gradients."""
        mode = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        if mode in self._called:
            yield
            return
        with _FIRST_CALLS:
            yield
        self._called.add(mode)


def padded(features_BSF: Tensor) -> Tensor:
    """Return the features with zeros up to whole tiles of context, and at least two.

    One tile would be compiled as the constant that torch takes sizes of 1 for.
    """
    missing = max(2 * TILE, -(-features_BSF.shape[1] // TILE) * TILE) - features_BSF.shape[1]
    return F.pad(features_BSF, (0, 0, 0, missing)) if missing else features_BSF


def _layer_with(
    attention: Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor],
) -> Callable[..., Tensor]:
    def run_layer(  # noqa: PLR0917  # a layer, and what it reads
        layer: DecoderLayer,
        hidden_BQD: Tensor,
        cos: Tensor,
        sin: Tensor,
        context_BIUD: Tensor,
        block_mask: BlockMask,
    ) -> Tensor:
        def attend(q_BHQE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor) -> Tensor:
            return attention(q_BHQE, k_BGTE, v_BGTE, block_mask)

        return layer(hidden_BQD, (cos, sin), attend, context_BIUD.flatten(1, 2))  # type: ignore[no-any-return]

    return run_layer


def _options(mode: str | None) -> dict[str, Any]:
    """Return what a mode stands for, without a fusion that torch 2.11 miscompiles.

    Keys are as many as context and slots together. Where a number of rows is such a sum, torch 2.11
    slices the partial sums of a norm's weight wrongly, and the backward raises "shape is invalid
    for input" (pytorch/pytorch#174379; right in 2.13). Those sums become kernels of their own.
    """
    options: dict[str, Any] = list_mode_options(mode) if mode else {}
    if TorchVersion(torch.__version__) < "2.13":
        options["triton.mix_order_reduction"] = False
    return options


def _norm(norm: RMSNorm, x: Tensor) -> Tensor:
    """Apply a norm by torch's own kernel, which computes in float32 too."""
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def _mark(x: Tensor, *, varying: int | None) -> None:
    """Let one size of a tensor vary, or none."""
    for dim in range(x.dim()):
        if dim == varying:
            maybe_mark_dynamic(x, dim)
        else:
            mark_static(x, dim)
