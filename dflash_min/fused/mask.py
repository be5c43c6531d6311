"""The block mask of DFlash from arithmetic on its anchors, without evaluating a pair.

`create_block_mask` evaluates the mask for each query and key, Q * T booleans (8,192 * 11,264 at 512
anchors and 3,072 tokens), and counts them tile by tile. Which tiles count follows from the smallest
and the largest anchor among the blocks of a query tile; that is a few thousand numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.nn.attention.flex_attention import BlockMask

from dflash_min.attention import dflash_mask_mod

if TYPE_CHECKING:
    from torch import Tensor

TILE: Final = 128
"""Queries, and keys, in a tile: `create_block_mask`'s default."""


def block_mask(
    anchors_BN: Tensor,
    keep_BN: Tensor,
    context_len: int,
    block_size: int,
    device: torch.device | str,
) -> BlockMask:
    """Build what `attention.build_block_mask` builds from the same arguments, tile for tile."""
    anchors_BN, keep_BN = anchors_BN.to(device), keep_BN.to(device)
    queries = anchors_BN.shape[1] * block_size
    some_BIJ, full_BIJ = seen_tiles(anchors_BN, keep_BN, context_len, block_size)
    partial, full = _ordered(some_BIJ & ~full_BIJ), _ordered(full_BIJ)
    return BlockMask.from_kv_blocks(
        *partial,
        *full,
        BLOCK_SIZE=TILE,
        mask_mod=dflash_mask_mod(anchors_BN, keep_BN, context_len, block_size),
        seq_lengths=(queries, context_len + queries),
    )


def seen_tiles(
    anchors_BN: Tensor, keep_BN: Tensor, context_len: int, block_size: int
) -> tuple[Tensor, Tensor]:
    """Return which tiles hold a pair that is seen, and which hold no other: two of (B, I, J).

    I are query tiles and J key tiles. Tiles that reach over the last query or key are never full.
    """
    device = anchors_BN.device
    blocks = anchors_BN.shape[1]
    queries = blocks * block_size
    keys = context_len + queries
    q_I = torch.arange(0, queries, TILE, device=device)
    last_q_I = (q_I + TILE).clamp(max=queries)
    kv_J = torch.arange(0, keys, TILE, device=device)
    slot_N = torch.arange(0, queries, block_size, device=device)

    own_IN = (slot_N < last_q_I[:, None]) & (slot_N + block_size > q_I[:, None])
    own_BIN = own_IN & keep_BN[:, None]
    most_BI = torch.where(own_BIN, anchors_BN[:, None], 0).amax(-1).clamp(max=context_len)
    least_BI = torch.where(own_IN, anchors_BN[:, None], context_len).amin(-1)
    all_kept_BI = (own_BIN | ~own_IN).all(-1)

    begin_N = context_len + slot_N
    reached_NJ = (begin_N[:, None] < kv_J + TILE) & (begin_N[:, None] + block_size > kv_J)
    # Counts of at most N blocks, exact in float32; matrix products know no integers on GPUs.
    blocks_BIJ = own_BIN.float() @ reached_NJ.float()
    some_BIJ = (kv_J < most_BI[..., None]) | (blocks_BIJ > 0)

    context_end_J = (kv_J + TILE).clamp(max=context_len)
    context_full_BIJ = (kv_J >= context_len) | (context_end_J <= least_BI[..., None])
    # Keys of blocks are all seen if every query of the tile is of the one block that they are of.
    first_I, last_I = q_I // block_size * block_size, (last_q_I - 1) // block_size * block_size
    block_begin_J = (kv_J - context_len).clamp(min=0)
    block_full_IJ = (block_begin_J >= last_I[:, None]) & (
        kv_J + TILE - context_len <= first_I[:, None] + block_size
    )
    whole_IJ = (q_I[:, None] + TILE <= queries) & (kv_J + TILE <= keys)
    full_BIJ = (
        whole_IJ
        & all_kept_BI[..., None]
        & context_full_BIJ
        & ((kv_J + TILE <= context_len) | block_full_IJ)
    )
    return some_BIJ, full_BIJ


def _ordered(tiles_BIJ: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many tiles each row has, and its tiles first and in order: (B, 1, I), (.., J)."""
    tiles = tiles_BIJ[:, None].to(torch.int32)
    counts = tiles.sum(-1, dtype=torch.int32)
    return counts, tiles.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
