"""Drafting without a model, to compare a drafter with: what followed the same few tokens before.

Both take the place of a drafter in `speculate.Decoding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    Ints = npt.NDArray[np.int64]


class NgramModel:
    """Counted continuations of a training text, with backoff from long contexts to short ones."""

    def __init__(self, text: Sequence[int], *, vocab: int, order: int, count: int) -> None:
        """Count a text.

        Args:
            text: token ids.
            vocab: all ids are below it.
            order: tokens of the longest context; cut to as many as 63 bits hold with one more.
            count: tokens to guess in each cycle.
        """
        self._bits = max(1, (vocab - 1).bit_length())
        self._count = count
        self.order = max(1, min(order, len(text) - 1, 63 // self._bits - 1))
        tokens = np.asarray(text, dtype=np.int64)
        self._tables = [self._table(tokens, length) for length in range(self.order + 1)]

    def propose(self, tokens: Sequence[int], features_1LF: Tensor) -> list[int]:
        """Guess token after token, each the most frequent behind the longest context counted."""
        del features_1LF
        text = list(tokens[-self.order :])
        guesses = []
        for _ in range(self._count):
            guess = self._next(text)
            guesses.append(guess)
            text.append(guess)
        return guesses

    def _next(self, text: Sequence[int]) -> int:
        for length in range(min(self.order, len(text)), 0, -1):
            contexts, nexts = self._tables[length]
            key = 0
            for token in text[len(text) - length :]:
                key = key << self._bits | token
            at = int(np.searchsorted(contexts, key))
            if at < len(contexts) and contexts[at] == key:
                return int(nexts[at])
        return int(self._tables[0][1][0])

    def _table(self, tokens: Ints, length: int) -> tuple[Ints, Ints]:
        """Return all contexts of a length, ascending, and the most frequent token behind each.

        Of equally frequent ones it is the one with the highest id.
        """
        windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)
        keys = np.zeros(len(windows), dtype=np.int64)
        for column in range(length + 1):
            keys = keys << self._bits | windows[:, column]
        grams, counts = np.unique(keys, return_counts=True)
        contexts = grams >> self._bits
        # Ordered by context and then by count: the last row of a context is the one to keep.
        ordered = np.lexsort((counts, contexts))
        last = np.append(np.flatnonzero(np.diff(contexts[ordered])), len(ordered) - 1)
        best = ordered[last]
        return contexts[best], grams[best] & ((1 << self._bits) - 1)


class PromptLookup:
    """What followed the last tokens the last time they stood in this very text."""

    def __init__(self, *, longest: int, count: int) -> None:
        """Look for the last `longest` tokens, then for fewer; copy up to `count` behind them."""
        self._longest = longest
        self._count = count

    def propose(self, tokens: Sequence[int], features_1LF: Tensor) -> list[int]:
        """Copy from the latest place, or guess nothing."""
        del features_1LF
        text = np.asarray(tokens, dtype=np.int64)
        for length in range(min(self._longest, len(text) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], length)
            places = np.flatnonzero((windows == text[-length:]).all(axis=1))
            if len(places):
                start = int(places[-1]) + length
                copied: list[int] = text[start : start + self._count].tolist()
                return copied
        return []
