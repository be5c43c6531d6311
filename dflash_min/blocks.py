"""Blocks of a training batch: their anchors, input ids, positions, labels and loss weights.

See `dflash_min.model` for the legend of shape suffixes. Block n has K slots; slot 0 is its anchor,
a token of the context, and slot k stands for the token at position anchor + k. The formulas are
those of DFlash (Chen, Liang, Liu: arXiv 2602.06036, section 4.2, equation 4, appendix A.1).
"""

from __future__ import annotations

import torch
from torch import Tensor


def sample_anchors(
    loss_mask_BS: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw anchors uniformly, without replacement, among the positions that have a first label.

    Position t can be an anchor if the loss counts both t and t + 1. There are always `count`
    anchors, so that the number of queries does not depend on the data; where a sequence has fewer
    candidates, the rest is padding at the end of its row, at position S - 1 and with keep False.

    Args:
        loss_mask_BS: bool, whether a token counts in the loss.
        count: N, at least 1.
        generator: the source of chance; its device does the drawing, so that a CPU generator gives
            the same anchors wherever the batch is.

    Returns:
        anchors_BN (int64, ascending in each row) and keep_BN (bool), on the mask's device.

    Raises:
        ValueError: if `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"at least one anchor is needed, got {count}")
    batch, length = loss_mask_BS.shape
    usable = loss_mask_BS.to(generator.device, torch.bool)
    usable = usable[:, :-1] & usable[:, 1:]
    # The smallest of independent uniform draws are a uniform sample; double precision has no ties.
    draws = torch.rand(
        usable.shape, generator=generator, dtype=torch.float64, device=generator.device
    ).masked_fill(~usable, 2.0)
    taken, where = draws.topk(min(count, usable.shape[1]), dim=1, largest=False)
    anchors = where.new_full((batch, count), length - 1)
    anchors[:, : where.shape[1]] = where.masked_fill(taken > 1.0, length - 1)
    anchors_BN = anchors.sort(dim=1).values
    return anchors_BN.to(loss_mask_BS.device), (anchors_BN < length - 1).to(loss_mask_BS.device)


def block_inputs(
    input_ids_BS: Tensor, anchors_BN: Tensor, block_size: int, mask_token_id: int
) -> Tensor:
    """Return ids_BQ: in each block the anchor's token, then K - 1 mask tokens."""
    batch, count = anchors_BN.shape
    ids_BNK = input_ids_BS.new_full((batch, count, block_size), mask_token_id)
    ids_BNK[:, :, 0] = input_ids_BS.gather(1, anchors_BN)
    return ids_BNK.flatten(1)


def positions(context_len: int, anchors_BN: Tensor, block_size: int) -> Tensor:
    """Return pos_BT: 0..S-1 for the context, then anchor + k for slot k of each block."""
    slots_BQ = _slot_positions(anchors_BN, block_size).flatten(1)
    context_S = torch.arange(context_len, device=anchors_BN.device)
    return torch.cat([context_S.expand(len(anchors_BN), -1), slots_BQ], dim=1)


def targets(  # noqa: PLR0917  # the batch, then the two constants of its blocks
    input_ids_BS: Tensor,
    loss_mask_BS: Tensor,
    anchors_BN: Tensor,
    keep_BN: Tensor,
    block_size: int,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Return labels_BQ (int64) and weights_BQ (float32).

    Slot k is labelled with the token at its own position, anchor + k. Its weight is
    exp(-(k - 1) / gamma), and 0 for the anchor, in padded blocks, past the end of the sequence and
    where the loss mask is False; labels of slots of weight 0 are valid ids without a meaning.
    """
    length = input_ids_BS.shape[1]
    slots_BQ = _slot_positions(anchors_BN, block_size).flatten(1)
    inside_BQ = slots_BQ < length
    slots_BQ = slots_BQ.clamp(max=length - 1)
    k_K = torch.arange(block_size, device=anchors_BN.device)
    decay_K = torch.where(k_K > 0, torch.exp(-(k_K - 1.0) / gamma), 0.0)
    weights_BQ = (keep_BN[:, :, None] * decay_K).flatten(1)
    counted_BQ = inside_BQ & loss_mask_BS.to(torch.bool).gather(1, slots_BQ)
    return input_ids_BS.gather(1, slots_BQ), weights_BQ * counted_BQ


def decay_gamma(block_size: int) -> float:
    """Return the decay length gamma of the loss weights, in slots.

    The paper gives 4 for K = 8, 5 for 10 and 7 for 16 (appendix A.1). Between and beyond, this is
    the line through the two nearest of them: K / 2 up to 10 and 5 + (K - 10) / 3 above.

    Raises:
        ValueError: if a block has no slot to predict.
    """
    if block_size < 2:
        raise ValueError(f"a block needs at least 2 slots, got {block_size}")
    return block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3


def _slot_positions(anchors_BN: Tensor, block_size: int) -> Tensor:
    return anchors_BN[:, :, None] + torch.arange(block_size, device=anchors_BN.device)
