"""The DFlash drafter: decoder layers whose attention also reads the target's features.

Legend of the shape suffixes in this package, one letter a dimension:

    B  batch                    N  anchors (blocks) in a sequence     D  hidden size
    S  context length           K  slots per block                    F  feature width, taps * D
    T  S + Q                    Q  queries, N * K                     V  vocabulary
    H  query heads              G  key and value heads                E  width of a head
    L  any length

Architecture and state-dict names are those of the published drafters (Chen, Liang, Liu: arXiv
2602.06036, sections 4.1 and A.3; z-lab/dflash on GitHub): Qwen3 layers, one projection of the
target's features for all layers, and keys and values of that context injected into every layer
through the layer's own key and value projections. Embedding and head are the target's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dflash_min.attention import attend_dense
from dflash_min.qwen3 import DecoderLayer, KeysValues, RMSNorm, init_weights, rotary_angles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_min.attention import Attend
    from dflash_min.config import ModelConfig


class Drafter(nn.Module):
    """Predicts all slots of a block at once from the target's features before its anchor."""

    def __init__(
        self, config: ModelConfig, *, seed: int = 0, checkpoint_layers: bool = False
    ) -> None:
        """Build the drafter on CPU in float32, the same for equal seeds.

        Args:
            config: sizes; `config.taps` sets the feature width.
            seed: of the weights.
            checkpoint_layers: recompute each layer in the backward instead of keeping its
                activations (non-reentrant activation checkpointing).
        """
        super().__init__()
        self.config = config
        self.checkpoint_layers = checkpoint_layers
        self.fc = nn.Linear(len(config.taps) * config.hidden, config.hidden, bias=False)
        self.hidden_norm = RMSNorm(config.hidden, config.rms_eps)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.rms_eps)
        init_weights(self, seed)

    def forward(
        self, block_embeds_BQD: Tensor, features_BSF: Tensor, positions_BT: Tensor, attend: Attend
    ) -> Tensor:
        """Run all blocks of a batch at once, for training.

        Args:
            block_embeds_BQD: the target's embeddings of `blocks.block_inputs`.
            features_BSF: `Target.features` of the whole sequences.
            positions_BT: `blocks.positions`.
            attend: attention under the DFlash mask.

        Returns:
            hidden_BQD, normalised: the input of the target's lm_head.

        Raises:
            ValueError: if there is not one position for each token of context and each slot.
        """
        queries = block_embeds_BQD.shape[1]
        if positions_BT.shape[1] != features_BSF.shape[1] + queries:
            raise ValueError(
                f"{positions_BT.shape[1]} positions for {features_BSF.shape[1]} tokens of context "
                f"and {queries} slots"
            )
        rotary = rotary_angles(positions_BT, self.config.head_dim, self.config.rope_theta)
        context_BSD = self._context(features_BSF)
        hidden_BQD = block_embeds_BQD
        for layer in self.layers:
            if self.checkpoint_layers:
                hidden_BQD = checkpoint(
                    layer,
                    hidden_BQD,
                    rotary,
                    attend,
                    context_BSD,
                    use_reentrant=False,
                    preserve_rng_state=False,  # a layer draws no random numbers
                )
            else:
                hidden_BQD = layer(hidden_BQD, rotary, attend, context_BSD)
        normed: Tensor = self.norm(hidden_BQD)
        return normed

    def context_cache(self, features_BSF: Tensor, positions_BS: Tensor) -> list[KeysValues]:
        """Return each layer's keys and values of the context, which stay as blocks come and go."""
        rotary = rotary_angles(positions_BS, self.config.head_dim, self.config.rope_theta)
        context_BSD = self._context(features_BSF)
        return [layer.self_attn.keys_values(context_BSD, rotary) for layer in self._decoder_layers]

    def draft(
        self, block_embeds_BKD: Tensor, cache: Sequence[KeysValues], positions_BK: Tensor
    ) -> Tensor:
        """Run one block for each sequence, for generation: every slot sees the whole cache.

        Args:
            block_embeds_BKD: the target's embeddings of the last token and K - 1 mask tokens.
            cache: `context_cache` of all tokens before that one.
            positions_BK: that token's position and the K - 1 after it.

        Returns:
            hidden_BKD, normalised.
        """
        rotary = rotary_angles(positions_BK, self.config.head_dim, self.config.rope_theta)
        hidden_BKD = block_embeds_BKD
        for layer, cached in zip(self._decoder_layers, cache, strict=True):
            hidden_BKD = layer(hidden_BKD, rotary, _attend_after(cached))
        normed: Tensor = self.norm(hidden_BKD)
        return normed

    @property
    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.layers))

    def _context(self, features_BSF: Tensor) -> Tensor:
        """Fuse the taps: RMSNorm(W_c [tap 1; ...; tap n]), once for all layers."""
        context_BSD: Tensor = self.hidden_norm(self.fc(features_BSF))
        return context_BSD


def _attend_after(cached: KeysValues) -> Attend:
    def attend(q_BHQE: Tensor, k_BGQE: Tensor, v_BGQE: Tensor) -> Tensor:
        keys = torch.cat([cached[0], k_BGQE], dim=2)
        values = torch.cat([cached[1], v_BGQE], dim=2)
        return attend_dense(q_BHQE, keys, values, None)

    return attend
