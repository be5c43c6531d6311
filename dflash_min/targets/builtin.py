"""The built-in target: a small frozen decoder whose hidden layers are the drafter's features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_min.qwen3 import DecoderLayer, RMSNorm, init_weights, rotary_angles
from dflash_min.targets import capture
from dflash_min.targets.kvcache import KVCache, causal_mask

if TYPE_CHECKING:
    from dflash_min.attention import Attend
    from dflash_min.config import ModelConfig
    from dflash_min.targets.interface import TargetCache


class Target(nn.Module):
    """A Qwen3-style causal decoder, frozen, in eval mode, with random weights of a given seed.

    Weights learned by `dflash_min.pretrain` are put in by `dflash_min.targets.folder.load`.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        """Build the target on CPU in float32, the same for equal seeds.

        Raises:
            ValueError: if a tap is no layer of the target.
        """
        super().__init__()
        self.config = config
        outside = [tap for tap in config.taps if not 0 <= tap < config.target_layers]
        if outside:
            raise ValueError(f"taps {outside} are not among {config.target_layers} target layers")
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.target_layers))
        self.norm = RMSNorm(config.hidden, config.rms_eps)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        init_weights(self, seed)
        capture.tap(self.layers, config.taps)
        self.requires_grad_(requires_grad=False).eval()

    @property
    def embed_VD(self) -> Tensor:
        """The token embedding, a row for each id."""
        return self.embed_tokens.weight

    @property
    def lm_head_VD(self) -> Tensor:
        """The weight of the output head."""
        return self.lm_head.weight

    def forward(self, ids_BS: Tensor) -> Tensor:
        """Return hidden_BSD after the last norm: `lm_head` of it are the next token's logits."""
        hidden_BSD: Tensor = self.norm(self._decode(ids_BS, self.config.target_layers))
        return hidden_BSD

    def features(self, ids_BS: Tensor) -> Tensor:
        """Return features_BSF: the outputs of the tapped layers side by side, in tap order.

        Tap i is the output of decoder layer i, hidden_states[i + 1] in Hugging Face's count. Layers
        after the last tap and the head are not run. Made without gradients but not in inference
        mode, whose tensors cannot be saved for a backward.
        """
        features_BSF, _ = self._tapped(ids_BS, max(self.config.taps) + 1, None)
        return features_BSF

    def cache(self, batch: int) -> KVCache:
        """Return an empty cache for `batch` sequences, to be given to `extend`."""
        return KVCache(self.config.target_layers, batch)

    def extend(self, ids_BL: Tensor, cache: TargetCache) -> tuple[Tensor, Tensor]:
        """Run L new tokens behind those in the cache, and add them to it.

        Args:
            ids_BL: int64, at least one token for each sequence.
            cache: of this target, `cache.length` tokens long.

        Returns:
            logits_BLV (float32), of the token after each new one, and features_BLF of the new ones.

        Raises:
            TypeError: for the cache of another kind of target.
        """
        if not isinstance(cache, KVCache):
            raise TypeError(f"a {type(cache).__name__} is no cache of the built-in target")
        features_BLF, hidden_BLD = self._tapped(ids_BL, self.config.target_layers, cache)
        with torch.no_grad():
            logits_BLV: Tensor = self.lm_head(self.norm(hidden_BLD))
        cache.advance(ids_BL.shape[1])
        return logits_BLV.float(), features_BLF

    def _tapped(self, ids_BL: Tensor, layers: int, cache: KVCache | None) -> tuple[Tensor, Tensor]:
        """Run the first `layers` layers and return features_BLF and the last one's output."""
        with capture.capturing() as captured, torch.no_grad():
            hidden_BLD = self._decode(ids_BL, layers, cache)
        return torch.cat([captured[tap] for tap in self.config.taps], dim=-1), hidden_BLD

    def _decode(self, ids_BL: Tensor, layers: int, cache: KVCache | None = None) -> Tensor:
        """Run the first `layers` layers on tokens that follow those in the cache."""
        past = 0 if cache is None else cache.length
        positions_1L = torch.arange(past, past + ids_BL.shape[1], device=ids_BL.device)[None]
        rotary = rotary_angles(positions_1L, self.config.head_dim, self.config.rope_theta)
        hidden_BLD: Tensor = self.embed_tokens(ids_BL)
        for index, layer in enumerate(self.layers[:layers]):
            attend = _attend_causal if cache is None else _attend_cached(cache, index)
            hidden_BLD = layer(hidden_BLD, rotary, attend)
        return hidden_BLD


def _attend_causal(q_BHLE: Tensor, k_BGLE: Tensor, v_BGLE: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q_BHLE, k_BGLE, v_BGLE, is_causal=True, enable_gqa=True)


def _attend_cached(cache: KVCache, layer: int) -> Attend:
    def attend(q_BHLE: Tensor, k_BGLE: Tensor, v_BGLE: Tensor) -> Tensor:
        keys, values = cache.store(layer, k_BGLE, v_BGLE)
        mask_LT = causal_mask(q_BHLE.shape[2], keys.shape[2], keys.device)
        return F.scaled_dot_product_attention(
            q_BHLE, keys, values, attn_mask=mask_LT, enable_gqa=True
        )

    return attend
