"""The drafter's loss and its metrics, as sums, so that batches and replicas combine exactly.

loss = sum(w * CE) / sum(w) over the slots of all blocks (DFlash, arXiv 2602.06036, equation 4, as
normalised by SpecForge). See `dflash_min.model` for the legend of shape suffixes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Means:
    """What sums come to, as plain numbers; nan where nothing was scored."""

    loss: float
    """Weighted mean of the cross-entropy, in nats."""
    accuracy: float
    """Share of the scored slots that are correct."""
    accept_len: float
    """Mean number of tokens that a block would commit, the target's own one included."""
    slot_accuracy: tuple[float, ...]
    """Accuracy by slot: of the first one after the anchor, and so on."""


@dataclass(frozen=True)
class LossSums:
    """Sums over the slots and blocks of any number of batches; means are properties.

    A slot is scored if its weight is not 0, a block if one of its slots is.
    """

    weighted_sum: Tensor
    """Sum of w * CE: the only one that carries gradients."""
    weight_sum: Tensor
    """Sum of w."""
    slot_correct: Tensor
    """Shape (K): scored slots whose likeliest token is the label, by slot index."""
    slot_scored: Tensor
    """Shape (K): scored slots, by slot index."""
    accepted: Tensor
    """Correct slots before the first slot, after the anchor, that is wrong or not scored."""
    blocks: Tensor
    """Scored blocks."""

    @property
    def loss(self) -> Tensor:
        """Weighted mean of the cross-entropy; 0, with gradients 0, where nothing is scored."""
        return self.weighted_sum / torch.where(self.weight_sum > 0, self.weight_sum, 1.0)

    @property
    def accuracy(self) -> Tensor:
        """Share of the scored slots that are correct; nan where nothing is scored."""
        return self.slot_correct.sum() / self.slot_scored.sum()

    @property
    def slot_accuracy(self) -> Tensor:
        """Shape (K): accuracy by slot index; nan where never scored, as at the anchor."""
        return self.slot_correct / self.slot_scored

    @property
    def accept_len(self) -> Tensor:
        """Mean number of tokens that a block would commit, the target's own one included.

        Leading correct slots + 1, averaged over the scored blocks, under teacher forcing; nan where
        there is no block.
        """
        return self.accepted / self.blocks + 1

    def means(self) -> Means:
        """Return the figures that training and evaluation report."""
        return Means(
            loss=float(self.weighted_sum / self.weight_sum),
            accuracy=float(self.accuracy),
            accept_len=float(self.accept_len),
            slot_accuracy=tuple(self.slot_accuracy[1:].tolist()),
        )

    def detached(self, device: torch.device | str = "cpu") -> LossSums:
        """Return the sums without gradients, on a device."""
        return LossSums(*(getattr(self, f.name).detach().to(device) for f in fields(self)))

    def __add__(self, other: LossSums) -> LossSums:
        """Combine with other batches' sums on the same device and with the same block size."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return LossSums(*(mine + theirs for mine, theirs in pairs))


def chunked_loss(
    hidden_BQD: Tensor,
    lm_head_VD: Tensor,
    labels_BQ: Tensor,
    weights_BQ: Tensor,
    chunk: int,
    *,
    block_size: int,
) -> LossSums:
    """Apply head and cross-entropy to `chunk` query slots at a time.

    A chunk's logits are dropped after its forward and made again in its backward (non-reentrant
    activation checkpointing), so at most chunk x V of them exist at one time, in float32.

    Args:
        hidden_BQD: the drafter's output.
        lm_head_VD: the target's head.
        labels_BQ: int64 token ids, valid ones even where the weight is 0.
        weights_BQ: float32.
        chunk: query slots, counted over the batch.
        block_size: K.

    Raises:
        ValueError: if `chunk` is below 1.
    """
    if chunk < 1:
        raise ValueError(f"a chunk needs at least 1 slot, got {chunk}")
    parts = zip(
        torch.split(hidden_BQD.flatten(0, 1), chunk),
        torch.split(labels_BQ.flatten(), chunk),
        torch.split(weights_BQ.flatten(), chunk),
        strict=True,
    )
    results = [
        checkpoint(
            _chunk_loss,
            hidden,
            lm_head_VD,
            labels,
            weights,
            use_reentrant=False,
            preserve_rng_state=False,  # no random numbers are drawn
        )
        for hidden, labels, weights in parts
    ]
    weighted = torch.stack([weighted_sum for weighted_sum, _ in results]).sum()
    correct_MK = torch.cat([correct for _, correct in results]).view(-1, block_size)
    return sums_over_blocks(weighted, correct_MK, weights_BQ.view(-1, block_size))


def sums_over_blocks(weighted_sum: Tensor, correct_MK: Tensor, weights_MK: Tensor) -> LossSums:
    """Sum over M blocks.

    Args:
        weighted_sum: sum of w * CE.
        correct_MK: bool, whether a slot's likeliest token is the label; anything if not scored.
        weights_MK: float32.
    """
    scored_MK = weights_MK > 0
    correct_MK = correct_MK & scored_MK
    # The anchor is given, so the run of leading correct slots starts after it.
    leading_M = correct_MK[:, 1:].cumprod(dim=1).sum()
    return LossSums(
        weighted_sum=weighted_sum,
        weight_sum=weights_MK.sum(),
        slot_correct=correct_MK.sum(0),
        slot_scored=scored_MK.sum(0),
        accepted=leading_M,
        blocks=scored_MK.any(dim=1).sum(),
    )


def _chunk_loss(
    hidden_CD: Tensor, lm_head_VD: Tensor, labels_C: Tensor, weights_C: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a chunk's sum of w * CE and, for each slot, whether the likeliest token is right."""
    logits_CV = F.linear(hidden_CD.to(lm_head_VD.dtype), lm_head_VD).float()
    cross_entropy_C = F.cross_entropy(logits_CV, labels_C, reduction="none")
    weighted_sum = (weights_C * cross_entropy_C).sum()
    # Last, because the recomputation stops once it has made all that the backward needs.
    return weighted_sum, logits_CV.detach().argmax(dim=-1) == labels_C
