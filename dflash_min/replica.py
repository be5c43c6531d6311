"""One replica of the drafter, the batches it takes, and what it does with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from dflash_min import blocks
from dflash_min.attention import attend_dense, build_block_mask, dense_mask
from dflash_min.data import seeded
from dflash_min.fused.layers import FusedDrafter, padded
from dflash_min.fused.loss import fused_loss
from dflash_min.fused.mask import block_mask
from dflash_min.loss import chunked_loss

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

    from dflash_min.attention import Attend, CompiledAttention
    from dflash_min.data import Text
    from dflash_min.loss import LossSums
    from dflash_min.model import Drafter
    from dflash_min.resolve import Resolved
    from dflash_min.targets.choice import TargetModel


@dataclass(frozen=True)
class Batch:
    """What a drafter's step needs, on the drafter's device. Shapes: see the legend in model.py."""

    step: int
    tokens: int
    """Tokens of text, without padding."""
    input_ids_BS: Tensor
    loss_mask_BS: Tensor
    anchors_BN: Tensor
    keep_BN: Tensor
    features_BSF: Tensor


def training_batch(
    resolved: Resolved, text: Text, target: TargetModel, step: int, rank: int, *, micro: int = 0
) -> Batch:
    """Make a batch of one drafter's step: text, anchors, and the target's features.

    It depends on the seed and the three numbers only; no global random state is used.

    Args:
        resolved: the run.
        text: where the windows come from.
        target: the calling thread's own.
        step: from 0.
        rank: which drafter the batch is for.
        micro: which of the batches of its step it is.
    """
    number = resolved.batch_number(step, rank, micro)
    length = resolved.length(step)
    input_ids_BS, loss_mask_BS = text.batch(
        number, length, resolved.batch_size, resolved.padded_length(length)
    )
    generator = torch.Generator().manual_seed(seeded(resolved.seed, "anchors", number))
    anchors_BN, keep_BN = blocks.sample_anchors(
        loss_mask_BS, resolved.anchor_count(length), generator
    )
    device = torch.device(resolved.layout.drafters[rank])
    return with_features(
        target, device, step, length, (input_ids_BS, loss_mask_BS, anchors_BN, keep_BN)
    )


def held_out_batch(
    resolved: Resolved, text: Text, target: TargetModel, number: int, device: torch.device
) -> Batch:
    """Make batch `number` of held-out text, the same in every evaluation of a run."""
    length = resolved.length(number)
    input_ids_BS, loss_mask_BS = text.held_out_batch(number, length, resolved.batch_size)
    generator = torch.Generator().manual_seed(seeded(resolved.seed, "held out", number))
    anchors_BN, keep_BN = blocks.sample_anchors(
        loss_mask_BS, resolved.anchor_count(length), generator
    )
    return with_features(
        target, device, number, length, (input_ids_BS, loss_mask_BS, anchors_BN, keep_BN)
    )


def with_features(
    target: TargetModel,
    device: torch.device,
    step: int,
    length: int,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Batch:
    """Run the target on token ids and put everything on the drafter's device.

    Args:
        target: whose features are taken.
        device: the drafter's.
        step: from 0.
        length: tokens of text in a sequence.
        tensors: input_ids_BS, loss_mask_BS, anchors_BN and keep_BN, anywhere.
    """
    input_ids_BS, loss_mask_BS, anchors_BN, keep_BN = tensors
    features_BSF = target.features(input_ids_BS.to(target.embed_VD.device))
    return Batch(
        step=step,
        tokens=input_ids_BS.shape[0] * length,
        input_ids_BS=input_ids_BS.to(device),
        loss_mask_BS=loss_mask_BS.to(device),
        anchors_BN=anchors_BN.to(device),
        keep_BN=keep_BN.to(device),
        features_BSF=features_BSF.to(device),
    )


class Replica:
    """A drafter on one device with frozen copies of the target's embedding and output head."""

    def __init__(
        self,
        drafter: Drafter,
        target: TargetModel,
        attention: CompiledAttention,
        resolved: Resolved,
    ) -> None:
        """Take the device from the drafter's parameters and share the target's where equal."""
        self.drafter = drafter
        self.parameters = list(drafter.parameters())
        self.device, self._dtype = self.parameters[0].device, self.parameters[0].dtype
        self._embed_VD = target.embed_VD.detach().to(self.device, self._dtype)
        self._lm_head_VD = target.lm_head_VD.detach().to(self.device, self._dtype)
        self._attention = attention
        self._resolved = resolved
        self._gamma = blocks.decay_gamma(resolved.model.block_size)
        self._build_mask = block_mask if "mask" in resolved.fused else build_block_mask
        self._sum_loss = fused_loss if "loss" in resolved.fused else chunked_loss
        self._layers = _fused_layers(drafter, resolved) if "layers" in resolved.fused else None

    def forward(self, batch: Batch) -> LossSums:
        """Draft every block of a batch with compiled attention.

        The block mask is built here, not compiled, by the thread that trains, in each step.
        """
        if self._layers is not None:
            return self._forward_fused(self._layers, batch)
        mask = self._block_mask(batch, batch.input_ids_BS.shape[1])

        def attend(q_BHQE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor) -> Tensor:
            return self._attention(q_BHQE, k_BGTE, v_BGTE, mask)

        return self._forward(batch, attend)

    def forward_dense(self, batch: Batch) -> LossSums:
        """Draft every block of a batch without anything compiled."""
        mask = dense_mask(
            batch.anchors_BN,
            batch.keep_BN,
            batch.input_ids_BS.shape[1],
            self._resolved.model.block_size,
        )

        def attend(q_BHQE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor) -> Tensor:
            return attend_dense(q_BHQE, k_BGTE, v_BGTE, mask)

        return self._forward(batch, attend)

    def _forward(self, batch: Batch, attend: Attend) -> LossSums:
        features_BSF = batch.features_BSF.to(self._dtype)
        embeds_BQD, positions_BT = self._inputs(batch, features_BSF.shape[1])
        return self._loss(batch, self.drafter(embeds_BQD, features_BSF, positions_BT, attend))

    def _forward_fused(self, layers: FusedDrafter, batch: Batch) -> LossSums:
        features_BSF = padded(batch.features_BSF.to(self._dtype))
        embeds_BQD, positions_BT = self._inputs(batch, features_BSF.shape[1])
        mask = self._block_mask(batch, features_BSF.shape[1])
        return self._loss(batch, layers(embeds_BQD, features_BSF, positions_BT, mask))

    def _block_mask(self, batch: Batch, context_len: int) -> BlockMask:
        return self._build_mask(
            batch.anchors_BN,
            batch.keep_BN,
            context_len,
            self._resolved.model.block_size,
            self.device,
        )

    def _inputs(self, batch: Batch, context_len: int) -> tuple[Tensor, Tensor]:
        """Return embeds_BQD of the blocks' slots and positions_BT."""
        model = self._resolved.model
        block_ids_BQ = blocks.block_inputs(
            batch.input_ids_BS, batch.anchors_BN, model.block_size, model.mask_token_id
        )
        positions_BT = blocks.positions(context_len, batch.anchors_BN, model.block_size)
        return F.embedding(block_ids_BQ, self._embed_VD), positions_BT

    def _loss(self, batch: Batch, hidden_BQD: Tensor) -> LossSums:
        model = self._resolved.model
        labels_BQ, weights_BQ = blocks.targets(
            batch.input_ids_BS,
            batch.loss_mask_BS,
            batch.anchors_BN,
            batch.keep_BN,
            model.block_size,
            self._gamma,
        )
        return self._sum_loss(
            hidden_BQD,
            self._lm_head_VD,
            labels_BQ,
            weights_BQ,
            self._resolved.loss_chunk,
            block_size=model.block_size,
        )


def _fused_layers(drafter: Drafter, resolved: Resolved) -> FusedDrafter:
    return FusedDrafter(
        drafter,
        dynamic=resolved.compile_dynamic,
        backend=resolved.backend,
        mode=None if resolved.compile_mode == "default" else resolved.compile_mode,
        fixed_queries=resolved.anchors != "vary",
    )
