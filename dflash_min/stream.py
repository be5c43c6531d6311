"""Tokens of documents one after another, from which windows are drawn."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import hashlib
    import random
    from collections.abc import Iterable, Sequence

    from torch import Tensor


class Stream:
    """Tokens of documents one after another, and which of them are learned."""

    def __init__(self, tokens: Sequence[int] = (), learned: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with these tokens, learned where a (start, end) in ascending order says so."""
        self._tokens = array("i", tokens)  # 32 bits: Hugging Face vocabularies pass 2 ** 15
        self._learned = list(learned)
        self._counts: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Sequence[int], *, learned: bool) -> None:
        """Add tokens, which the loss is on or not."""
        start = len(self)
        self._tokens.extend(tokens)
        self._counts = []
        if not learned or len(self) == start:
            return
        if self._learned and self._learned[-1][1] == start:
            start = self._learned.pop()[0]
        self._learned.append((start, len(self)))

    def split(self, at: int) -> tuple[Stream, Stream]:
        """Return the tokens before `at` and those from it on."""
        return self._part(0, at), self._part(at, len(self))

    def _part(self, low: int, high: int) -> Stream:
        clipped = ((max(s, low) - low, min(e, high) - low) for s, e in self._learned)
        return Stream(self._tokens[low:high], ((s, e) for s, e in clipped if s < e))

    def update_digest(self, digest: hashlib.blake2b) -> None:
        """Feed all that the stream is made of, the same on every machine."""
        tokens = self._tokens
        if sys.byteorder == "big":
            tokens = tokens[:]
            tokens.byteswap()
        digest.update(f"{len(tokens)}, {self._learned}".encode())
        digest.update(tokens.tobytes())

    @property
    def pairs(self) -> int:
        """Number of learned tokens that a learned token follows: where an anchor can be."""
        if not self._counts:
            self._counts = list(accumulate(end - start - 1 for start, end in self._learned))
        return self._counts[-1] if self._counts else 0

    def window(self, length: int, rng: random.Random) -> tuple[Tensor, Tensor]:
        """Draw a stretch in which at least one anchor can be.

        Returns:
            token ids (length,) int64, and which of them are learned (length,) bool.

        Raises:
            ValueError: if the stream is shorter than that, or no anchor can be anywhere in it.
        """
        start = self.start(length, rng)
        ids = torch.tensor(self._tokens[start : start + length], dtype=torch.int64)
        learned = torch.zeros(length, dtype=torch.bool)
        first = bisect_right(self._learned, start, key=lambda span: span[1])
        for low, high in self._learned[first:]:
            if low >= start + length:
                break
            learned[max(low - start, 0) : high - start] = True
        return ids, learned

    def start(self, length: int, rng: random.Random) -> int:
        """Draw the token that the next window begins at, as `window` does."""
        drawn = rng.randrange(self.pairs)
        run = bisect_right(self._counts, drawn)
        pair = self._learned[run][1] - 1 - (self._counts[run] - drawn)
        return rng.randint(max(0, pair + 2 - length), min(pair, len(self) - length))
