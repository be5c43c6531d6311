"""DFlash's attention: the mask, compiled flex attention per device, and a dense reference.

Keys and values are the context followed by the blocks, T = S + Q; see `dflash_min.model` for the
legend of shape suffixes. A query slot of the block with anchor a sees the context before a (not
the anchor's own feature, which does not exist yet when the block is drafted) and every slot of its
own block. A slot of a padded block sees nothing: its output is 0 and its gradients are 0.

On CUDA the compiled function is `flex_attention`. On CPU that function refuses inputs that require
gradients, although the operator below it differentiates correctly, so there the compiled function
calls the operator and takes the same way through Dynamo, AOTAutograd and FX as on a GPU; only the
kernel differs, which under the aot_eager backend is the operator's dense one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

# Torch's documented way to say that a size may vary; it has no other name.
from torch._dynamo import maybe_mark_dynamic
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor
    from torch.nn.attention.flex_attention import FlexKernelOptions

    Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
    """q_BHQE, k_BGTE, v_BGTE -> out_BHQE."""
    MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """Batch, head, query and key indices -> whether that query sees that key."""

# Importing flex_attention registers the operator. It is not public; it is called directly only
# because flex_attention raises on CPU inputs that require gradients.
_FLEX_OPERATOR = torch.ops.higher_order.flex_attention


def dflash_mask_mod(
    anchors_BN: Tensor, keep_BN: Tensor, context_len: int, block_size: int
) -> MaskMod:
    """State which keys a query sees, as a function for flex attention.

    The lengths that vary between steps are captured as tensors: a captured int would be a guard on
    its value with `dynamic=False` and a symbolic size in the kernel's index arithmetic otherwise.
    `block_size` is a keyword default because Dynamo takes an int from there as a constant whatever
    `dynamic` is, so that kernels divide by a constant.

    Args:
        anchors_BN: int64, position of each block's anchor in the context; any value where padded.
        keep_BN: bool, False for padded blocks.
        context_len: S.
        block_size: K, slots per block.
    """
    context = anchors_BN.new_full((), context_len)
    last_block = anchors_BN.new_full((), anchors_BN.shape[1] - 1)

    def mask_mod(
        batch: Tensor, head: Tensor, q: Tensor, kv: Tensor, *, block_size: int = block_size
    ) -> Tensor:
        del head
        # Kernels evaluate whole tiles, so that q can lie beyond the last query.
        block = torch.minimum(q // block_size, last_block)
        in_context = (kv < context) & (kv < anchors_BN[batch, block])
        in_block = (kv >= context) & ((kv - context) // block_size == block)
        return (in_context | in_block) & keep_BN[batch, block]

    return mask_mod


def build_block_mask(
    anchors_BN: Tensor,
    keep_BN: Tensor,
    context_len: int,
    block_size: int,
    device: torch.device | str,
) -> BlockMask:
    """Build the block mask of one batch, shared by all heads and layers.

    The mask has one head: with one for each of H heads the dense intermediate of
    `create_block_mask` would be H times as large.

    Args:
        anchors_BN: int64, position of each block's anchor in the context.
        keep_BN: bool, False for padded blocks.
        context_len: S.
        block_size: K, slots per block.
        device: where the attention runs; a mask is of use on one device only.
    """
    batch, count = anchors_BN.shape
    queries = count * block_size
    mask_mod = dflash_mask_mod(anchors_BN.to(device), keep_BN.to(device), context_len, block_size)
    return create_block_mask(
        mask_mod, batch, None, queries, context_len + queries, device=str(device)
    )


def dense_mask(anchors_BN: Tensor, keep_BN: Tensor, context_len: int, block_size: int) -> Tensor:
    """Evaluate `dflash_mask_mod` of the same arguments for every pair: bool, shape (B, 1, Q, T)."""
    batch, count = anchors_BN.shape
    queries = count * block_size

    def index(size: int, dim: int) -> Tensor:
        shape = [1, 1, 1, 1]
        shape[dim] = size
        return torch.arange(size, device=anchors_BN.device).view(shape)

    mask_mod = dflash_mask_mod(anchors_BN, keep_BN, context_len, block_size)
    return mask_mod(
        index(batch, 0), index(1, 1), index(queries, 2), index(context_len + queries, 3)
    )


def attend_dense(q_BHQE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, mask: Tensor | None) -> Tensor:
    """Attend with a dense mask that broadcasts to (B, H, Q, T), or with none.

    Rows that see nothing give 0 and pass no gradient, whatever kernel torch picks for them.

    On CUDA flash attention takes no mask, and the memory-efficient kernel no shared key heads
    (`can_use_flash_attention` and `can_use_mem_efficient_attention` in torch's sdp_utils.cpp). With
    neither every score is written: B * H * Q * T, 6 GB in bfloat16 for 32 heads, 512 blocks of 16
    and 3,072 tokens. So the key heads are repeated there.
    """
    if mask is None:
        return F.scaled_dot_product_attention(q_BHQE, k_BGTE, v_BGTE, enable_gqa=True)
    blind = ~mask.any(dim=-1, keepdim=True)
    repeated = q_BHQE.device.type == "cuda"
    if repeated:
        k_BGTE, v_BGTE = (repeat_heads(x, q_BHQE.shape[1]) for x in (k_BGTE, v_BGTE))
    out_BHQE = F.scaled_dot_product_attention(
        q_BHQE, k_BGTE, v_BGTE, attn_mask=mask | blind, enable_gqa=not repeated
    )
    return out_BHQE.masked_fill(blind, 0.0)


def repeat_heads(x_BGTE: Tensor, heads: int) -> Tensor:
    """Return x_BHTE: keys or values with each head once for each query head that shares it."""
    return x_BGTE.repeat_interleave(heads // x_BGTE.shape[1], dim=1)


def _identity(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    del batch, head, q, kv
    return score


def flex_attention_operator(
    query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask
) -> Tensor:
    """Call the operator below flex_attention. To be compiled: uncompiled it does not differentiate.

    Shapes as `Attend`; the number of query heads is a multiple of that of key heads.
    """
    scale = query.size(-1) ** -0.5
    out, _logsumexp, _max_scores = _FLEX_OPERATOR(
        query, key, value, _identity, block_mask.as_tuple(), scale, {}
    )
    return out  # type: ignore[no-any-return]  # operators are not typed


class CompiledAttention:
    """Flex attention, compiled once per device. Threads share it; it holds no lock.

    All the callables of one function share its Dynamo cache, which has the device among its guards.

    With `dynamic=True` no new context length and no new anchors lead to a recompile, provided the
    number of anchors stays and there are at least two key tiles (T > 128): torch compiles sizes of
    0 and 1 as constants.
    """

    def __init__(
        self,
        devices: Iterable[torch.device | str],
        *,
        dynamic: bool | None = True,
        backend: str | None = None,
        mode: str | None = None,
    ) -> None:
        """Wrap the device's function for each device; compiling itself happens at the first call.

        Args:
            devices: devices to attend on; repeated ones count once.
            dynamic: as in `torch.compile`; None lets sizes turn symbolic when they change.
            backend: as in `torch.compile`; None is aot_eager on CPU, where inductor has no backward
                of flex attention, and inductor elsewhere.
            mode: as in `torch.compile`; backends other than inductor know only "default".
        """
        self.dynamic = dynamic
        # A tensor's device always has an index where the kind of device has several.
        found = {torch.empty(0, device=device).device for device in devices}
        self.by_device: dict[torch.device, Callable[..., Tensor]] = {
            device: _compile(device, dynamic=dynamic, backend=backend, mode=mode)
            for device in found
        }

    def __call__(
        self, q_BHQE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, block_mask: BlockMask
    ) -> Tensor:
        """Attend with the callable of the queries' device.

        Returns:
            out_BHQE; 0 for rows that see nothing.

        Raises:
            ValueError: if there is no callable for that device.
        """
        attend = self.by_device.get(q_BHQE.device)
        if attend is None:
            names = ", ".join(sorted(map(str, self.by_device)))
            raise ValueError(f"attention is compiled for {names}, not for {q_BHQE.device}")
        if self.dynamic:  # otherwise sizes become symbolic when torch sees them change, or never
            mark_tile_counts(block_mask)
        return attend(q_BHQE, k_BGTE, v_BGTE, block_mask=block_mask)


def plain_attention(
    device: torch.device, kernel_options: FlexKernelOptions | None = None
) -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    """Return attention on a device as it is before it is compiled, to be part of a larger graph."""
    if device.type == "cpu":
        return flex_attention_operator

    def attend(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask) -> Tensor:
        return flex_attention(
            query,
            key,
            value,
            block_mask=block_mask,
            enable_gqa=True,
            kernel_options=kernel_options,
        )

    return attend


def _compile(
    device: torch.device, *, dynamic: bool | None, backend: str | None, mode: str | None
) -> Callable[..., Tensor]:
    if device.type == "cpu":
        return torch.compile(
            flex_attention_operator, dynamic=dynamic, backend=backend or "aot_eager", mode=mode
        )
    compiled = torch.compile(
        flex_attention, dynamic=dynamic, backend=backend or "inductor", mode=mode
    )

    def attend(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask) -> Tensor:
        return compiled(query, key, value, block_mask=block_mask, enable_gqa=True)

    return attend


def mark_tile_counts(block_mask: BlockMask) -> None:
    """Keep the numbers of tiles from being compiled as equal to whatever they equal by chance.

    Torch gives symbolic sizes that are equal at the first call one symbol ("duck shaping"). Two key
    tiles beside two key heads, which flex attention makes static, are then the constant 2, and the
    length that takes a third tile recompiles. A size marked so has a symbol of its own.
    """
    for tiles in (
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
        block_mask.q_num_blocks,
        block_mask.q_indices,
        block_mask.full_q_num_blocks,
        block_mask.full_q_indices,
    ):
        if tiles is not None:
            maybe_mark_dynamic(tiles, list(range(2, tiles.dim())))
