"""What every target can do, and what it settles for its drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from dflash_min.huggingface.form import TARGET_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from dflash_min.config import ModelConfig


class TargetCache(Protocol):
    """Keys and values of the tokens that a target has seen."""

    length: int
    """Tokens in each sequence."""

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""


class TargetModel(Protocol):
    """A frozen causal language model in eval mode. Nothing it returns carries gradients.

    See `dflash_min.model` for the legend of shape suffixes.
    """

    config: ModelConfig

    @property
    def embed_VD(self) -> Tensor:
        """The token embedding, a row for each id."""

    @property
    def lm_head_VD(self) -> Tensor:
        """The weight of the output head."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return all weights, in an order of the model's own."""

    def features(self, ids_BS: Tensor) -> Tensor:
        """Return features_BSF of whole sequences: the tapped layers' outputs side by side."""

    def cache(self, batch: int) -> TargetCache:
        """Return an empty cache for `batch` sequences, to be given to `extend`."""

    def extend(self, ids_BL: Tensor, cache: TargetCache) -> tuple[Tensor, Tensor]:
        """Run L new tokens behind those in the cache, and add them to it.

        Returns:
            logits_BLV (float32), of the token after each new one, and features_BLF of the new ones.
        """


_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class TargetSizes(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename=TARGET_KEYS,
):
    """What a named target settles for its drafter, by the keys of Hugging Face's Qwen3 config."""

    hidden: _Count
    heads: _Count
    kv_heads: _Count
    head_dim: _Count
    mlp: _Count
    target_layers: _Count
    vocab: _Count
    rope_theta: float
    rms_eps: float
