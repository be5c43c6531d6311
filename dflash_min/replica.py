"""One replica of the drafter, and what it does with a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

from dflash_min import blocks
from dflash_min.attention import attend_dense, build_block_mask, dense_mask
from dflash_min.fused.layers import FusedDrafter, padded
from dflash_min.fused.loss import fused_loss
from dflash_min.fused.mask import block_mask
from dflash_min.loss import chunked_loss

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

    from dflash_min.attention import Attend, CompiledAttention
    from dflash_min.batches import Batch
    from dflash_min.loss import LossSums
    from dflash_min.model import Drafter
    from dflash_min.resolve import Resolved
    from dflash_min.targets.interface import TargetModel


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
        batch.receive()
        if self._layers is not None:
            return self._forward_fused(self._layers, batch)
        mask = self._block_mask(batch, batch.input_ids_BS.shape[1])

        def attend(q_BHQE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor) -> Tensor:
            return self._attention(q_BHQE, k_BGTE, v_BGTE, mask)

        return self._forward(batch, attend)

    def forward_dense(self, batch: Batch) -> LossSums:
        """Draft every block of a batch without anything compiled."""
        batch.receive()
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
