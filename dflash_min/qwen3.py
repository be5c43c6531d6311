"""Qwen3's decoder layers, which the drafter and the built-in target are made of.

Each layer can also be given a context that only gives keys and values: how a drafter reads the
target's features. See `dflash_min.model` for the legend of shape suffixes.

Parameters and inputs share one dtype, or the caller's autocast settles it; norms and rotary angles
are computed in float32 whatever it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from dflash_min.attention import Attend
    from dflash_min.config import ModelConfig


Rotary = tuple[Tensor, Tensor]
"""Cosine and sine, each of shape (B, 1, L, E / 2), float32."""


KeysValues = tuple[Tensor, Tensor]
"""k_BGLE, normalised and rotated, and v_BGLE."""


class DecoderLayer(nn.Module):
    """A Qwen3 decoder layer: attention and a gated MLP, each behind a norm, with a residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.mlp = MLP(config)

    def forward(
        self, x_BLD: Tensor, rotary: Rotary, attend: Attend, context_BSD: Tensor | None = None
    ) -> Tensor:
        """Update the sequence; the context, if any, comes before it and only gives keys and values.

        `rotary` covers the context and the sequence, in that order. The context has had its own
        norm and takes no part in this layer's input norm.
        """
        length = x_BLD.shape[1]
        normed_BLD = self.input_layernorm(x_BLD)
        source = normed_BLD if context_BSD is None else torch.cat([context_BSD, normed_BLD], dim=1)
        own_rotary = (rotary[0][:, :, -length:], rotary[1][:, :, -length:])
        query = self.self_attn.queries(normed_BLD, own_rotary)
        key, value = self.self_attn.keys_values(source, rotary)
        out_BLA = attend(query, key, value).transpose(1, 2).flatten(2)
        x_BLD = x_BLD + self.self_attn.o_proj(out_BLA)
        updated: Tensor = x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))
        return updated


class Attention(nn.Module):
    """The projections around attention, with an RMSNorm of each query's and key's head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_eps)

    def queries(self, x_BLD: Tensor, rotary: Rotary) -> Tensor:
        """Return q_BHLE, normalised and rotated."""
        return rotate(self.q_norm(self._split(self.q_proj(x_BLD))), rotary)

    def keys_values(self, x_BLD: Tensor, rotary: Rotary) -> KeysValues:
        """Return k_BGLE, normalised and rotated, and v_BGLE, both contiguous.

        A copy of v is cheap beside what a view costs: the sizes of a view's base are compiled too,
        and its width can equal T by chance.
        """
        key = rotate(self.k_norm(self._split(self.k_proj(x_BLD))), rotary)
        return key, self._split(self.v_proj(x_BLD)).contiguous()

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.mlp, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.mlp, bias=False)
        self.down_proj = nn.Linear(config.mlp, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape of x."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32, in the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Keep shape and dtype of x."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight.float()).to(x.dtype)


def rotary_angles(positions_BL: Tensor, head_dim: int, theta: float) -> Rotary:
    """Return cosine and sine of position * theta ** (-2 i / E) for i below E / 2."""
    exponents = torch.arange(0, head_dim, 2, device=positions_BL.device).float() / head_dim
    angles = positions_BL[:, None, :, None].float() * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x_BHLE: Tensor, rotary: Rotary) -> Tensor:
    """Rotate by position; element i of a head is paired with element i + E / 2 (Llama, Qwen)."""
    cos, sin = (part.to(x_BHLE.dtype) for part in rotary)
    first, second = x_BHLE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@torch.no_grad()
def init_weights(module: nn.Module, seed: int) -> None:
    """Draw every weight from one generator, in the order of the state dict.

    Linear weights have standard deviation 1 / sqrt(inputs), about the customary 0.02 at a width of
    2,560 and right for small widths too; embeddings have 1; norms stay 1. Global random state is
    neither read nor written, since threads share it.
    """
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(0.0, part.in_features**-0.5, generator=generator)
        elif isinstance(part, nn.Embedding):
            part.weight.normal_(generator=generator)
