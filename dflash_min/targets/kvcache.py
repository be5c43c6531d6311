"""Keys and values of the tokens seen so far, for decoders that take a text a few tokens at a time.

See `dflash_min.model` for the legend of shape suffixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_CAPACITY: Final = 64


class KVCache:
    """Keys and values of every layer, in buffers that double when they are full.

    Tokens are added in two moves, so that a forward that fails halfway leaves the cache as it was:
    each layer stores its keys and values behind the `length` tokens that are there, and then
    `advance` counts them in.
    """

    def __init__(self, layers: int, batch: int) -> None:
        """Begin with no tokens; a layer's buffer is made on the device of the first keys it gets.

        Args:
            layers: that attend.
            batch: sequences side by side, all of one length.
        """
        self.length = 0
        self._batch = batch
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    def store(self, layer: int, k_BGLE: Tensor, v_BGLE: Tensor) -> tuple[Tensor, Tensor]:
        """Put a layer's keys and values of L new tokens behind those that are counted in.

        Returns:
            The layer's keys and values of all `length` + L tokens: views, valid until the next
            store.

        Raises:
            ValueError: for another number of sequences than the cache was made for.
        """
        if k_BGLE.shape[0] != self._batch:
            raise ValueError(f"{k_BGLE.shape[0]} sequences for a cache of {self._batch}")
        self._keys[layer] = self._put(self._keys[layer], k_BGLE)
        self._values[layer] = self._put(self._values[layer], v_BGLE)
        return self.read(layer, self.length + k_BGLE.shape[2])

    def read(self, layer: int, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Return views of a layer's keys and values of the first `length` tokens (all of them).

        Raises:
            ValueError: if nothing was stored for this layer.
        """
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            raise ValueError(f"nothing is stored for layer {layer}")
        until = self.length if length is None else length
        return keys[:, :, :until], values[:, :, :until]

    def advance(self, count: int) -> None:
        """Count `count` stored tokens in."""
        self.length += count

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on.

        Raises:
            ValueError: if there are not that many.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop {self.length} cached tokens to {length}")
        self.length = length

    def _put(self, buffer_BGCE: Tensor | None, new_BGLE: Tensor) -> Tensor:
        """Write behind the counted tokens, in the buffer or in a copy of twice its size."""
        until = self.length + new_BGLE.shape[2]
        if buffer_BGCE is None or until > buffer_BGCE.shape[2]:
            batch, heads, _, width = new_BGLE.shape
            capacity = max(_LEAST_CAPACITY, 1 << (until - 1).bit_length())
            grown = new_BGLE.new_empty(batch, heads, capacity, width)
            if buffer_BGCE is not None:
                grown[:, :, : self.length] = buffer_BGCE[:, :, : self.length]
            buffer_BGCE = grown
        buffer_BGCE[:, :, self.length : until] = new_BGLE
        return buffer_BGCE


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Return which keys each of the last `queries` tokens sees: bool, shape (L, T), or None: all.

    The last query sees every key. Torch's own `is_causal` aligns the first query with the first
    key instead (documentation of scaled_dot_product_attention).
    """
    if queries == 1:
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
