"""The built-in target: a small frozen decoder whose hidden layers are the drafter's features."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_min.model import DecoderLayer, RMSNorm, init_weights, rotary_angles

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash_min.config import ModelConfig

# Hooks stay on the layers, and what they capture belongs to the thread that asked: threads may
# share a target, and adding or removing hooks while another thread runs the layer is no option.
_captured: ContextVar[dict[int, Tensor] | None] = ContextVar("captured", default=None)


class Target(nn.Module):
    """A Qwen3-style causal decoder, frozen, in eval mode, with random weights of a given seed."""

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
        for tap in set(config.taps):
            self.layers[tap].register_forward_hook(_capture(tap))
        self.requires_grad_(requires_grad=False).eval()

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
        captured: dict[int, Tensor] = {}
        token = _captured.set(captured)
        try:
            with torch.no_grad():
                self._decode(ids_BS, max(self.config.taps) + 1)
        finally:
            _captured.reset(token)
        return torch.cat([captured[tap] for tap in self.config.taps], dim=-1)

    def _decode(self, ids_BS: Tensor, layers: int) -> Tensor:
        """Run the first `layers` layers."""
        positions_1S = torch.arange(ids_BS.shape[1], device=ids_BS.device)[None]
        rotary = rotary_angles(positions_1S, self.config.head_dim, self.config.rope_theta)
        hidden_BSD: Tensor = self.embed_tokens(ids_BS)
        for layer in self.layers[:layers]:
            hidden_BSD = layer(hidden_BSD, rotary, _attend_causal)
        return hidden_BSD


def _attend_causal(q_BHLE: Tensor, k_BGLE: Tensor, v_BGLE: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q_BHLE, k_BGLE, v_BGLE, is_causal=True, enable_gqa=True)


def _capture(tap: int) -> Callable[[nn.Module, tuple[object, ...], Tensor], None]:
    def hook(layer: nn.Module, args: tuple[object, ...], output: Tensor) -> None:
        del layer, args
        captured = _captured.get()
        if captured is not None:
            captured[tap] = output

    return hook
