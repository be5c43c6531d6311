"""The block mask of DFlash from arithmetic on its anchors, without evaluating a pair.

`create_block_mask` evaluates the mask for each query and key, Q * T booleans (8,192 * 11,264 at 512
anchors and 3,072 tokens), and counts them tile by tile. Which tiles count follows from the smallest
and the largest anchor among the blocks of a query tile; that is a few thousand numbers.

Attention's kernels evaluate the mask in tiles of which a part is seen, and wait for what it loads:
nothing is computed meanwhile. `attention.dflash_mask_mod` loads the number of blocks, and by it the
query's anchor and whether its block is kept. Here a query's two bounds lie ready under its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F

# Torch's documented way to say that a size may vary; it has no other name.
from torch._dynamo import maybe_mark_dynamic
from torch.nn.attention.flex_attention import BlockMask

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_min.attention import MaskMod

_NOWHERE: Final = torch.iinfo(torch.int32).max
"""A key that none is as far as."""

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
        mask_mod=mask_by_bounds(anchors_BN, keep_BN, context_len, block_size),
        seq_lengths=(queries, context_len + queries),
    )


def mask_by_bounds(
    anchors_BN: Tensor, keep_BN: Tensor, context_len: int, block_size: int
) -> MaskMod:
    """State what `attention.dflash_mask_mod` does by two numbers a query, in int32.

    They are how many keys of the context it sees and which key its own block begins with. The
    tables are filled up to whole tiles of queries, since kernels evaluate those; beyond the last
    query nothing is seen. `block_size` is a keyword's default for the reason given there.
    """
    queries = anchors_BN.shape[1] * block_size

    def by_query(bound_BN: Tensor, missing: int) -> Tensor:
        bound_BQ = bound_BN.to(torch.int32).repeat_interleave(block_size, dim=1)
        bound_BQ = F.pad(bound_BQ, (0, -queries % TILE), value=missing)
        # Whole tiles are as many as the queries by chance: see `attention.mark_tile_counts`.
        maybe_mark_dynamic(bound_BQ, 1)
        return bound_BQ

    begins_N = context_len + torch.arange(0, queries, block_size, device=anchors_BN.device)
    seen_BQ = by_query(torch.where(keep_BN, anchors_BN, 0).clamp(max=context_len), 0)
    begin_BQ = by_query(torch.where(keep_BN, begins_N, _NOWHERE), _NOWHERE)

    def mask_mod(
        batch: Tensor, head: Tensor, q: Tensor, kv: Tensor, *, block_size: int = block_size
    ) -> Tensor:
        del head
        behind = kv - begin_BQ[batch, q]
        return (kv < seen_BQ[batch, q]) | ((behind >= 0) & (behind < block_size))

    return mask_mod


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
