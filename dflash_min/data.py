"""Text as tokens, dealt out in windows by number.

The tokens of all documents make one stream. A window is a stretch of it; which one depends only on
the seed and the window's number, never on who asks or when.

Windows know no documents: one may begin in the middle of a conversation and reach into the next. So
no text is too short or too long for a length, and nothing is padded; but a block may follow on text
of another conversation, which it never does at inference. All of a window is its blocks' context,
as if it were one text.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Final

import torch

from dflash_min import reading
from dflash_min.errors import UsageError
from dflash_min.tokens import ByteTokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from dflash_min.stream import Stream
    from dflash_min.tokens import Tokens

_HELD_OUT_SHARE: Final = 0.05


def seeded(*parts: object) -> int:
    """Return a 63-bit seed that depends on nothing but `parts`, so on no generator's state."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Text:
    """The training text and a held-out part of it, as numbered batches of windows."""

    def __init__(self, stream: Stream, seed: int, longest: int, tokens: Tokens) -> None:
        """Hold out the end of the stream, if what is left still holds a window of `longest`."""
        cut = len(stream) - max(longest, int(len(stream) * _HELD_OUT_SHARE))
        self._seed = seed
        self._pad_id = tokens.pad_id
        self._train = stream
        self._held_out: Stream | None = None
        if cut >= longest:
            train, held_out = stream.split(cut)
            if train.pairs and held_out.pairs:
                self._train, self._held_out = train, held_out

    @classmethod
    def load(
        cls, paths: Sequence[Path], seed: int, longest: int, tokens: Tokens | None = None
    ) -> Text:
        """Read files; with no path, the Python standard library's sources.

        Args:
            paths: as `reading.read` has them.
            seed: decides which windows are drawn.
            longest: tokens of the longest window that will be asked for.
            tokens: the target's; bytes if not given.

        Raises:
            UsageError: if a file cannot be used, as `reading.read` has it; or if there is too
                little text for one window.
        """
        tokens = ByteTokens() if tokens is None else tokens
        stream = reading.read(paths, tokens)
        source = ", ".join(str(path) for path in paths) or "the standard library's sources"
        if len(stream) < longest:
            raise UsageError(
                f"{source}: {len(stream)} tokens of text, but a sequence takes {longest}"
            )
        if not stream.pairs:
            raise UsageError(f"{source}: no two assistant tokens in a row to learn from")
        return cls(stream, seed, longest, tokens)

    @property
    def digest(self) -> str:
        """Hex digits that tell this text, its tokens and what is learned, from any other."""
        digest = hashlib.blake2b(digest_size=16)
        for stream in (self._train, self._held_out):
            if stream is not None:
                stream.update_digest(digest)
        return digest.hexdigest()

    @property
    def holds_out(self) -> bool:
        """Whether there was text enough to hold some out."""
        return self._held_out is not None

    def batch(
        self, number: int, length: int, batch_size: int, padded_length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return training batch `number`.

        Returns:
            input_ids_BS int64 and loss_mask_BS bool, on the CPU, with S = padded_length (default:
            length). What lies beyond `length` is padding and outside the loss mask.
        """
        return self._batch(self._train, ("train", number), length, batch_size, padded_length)

    def starts(self, number: int, length: int, batch_size: int) -> list[int]:
        """Return at which token of the training text each window of batch `number` begins."""
        rng = self._rng("train", number)
        return [self._train.start(length, rng) for _ in range(batch_size)]

    def held_out_batch(self, number: int, length: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return batch `number` of text that no training batch has; shapes as in `batch`.

        Raises:
            ValueError: if nothing was held out.
        """
        if self._held_out is None:
            raise ValueError("there was too little text to hold some out")
        return self._batch(self._held_out, ("held out", number), length, batch_size, None)

    def _batch(
        self,
        stream: Stream,
        name: tuple[str, int],
        length: int,
        batch_size: int,
        padded_length: int | None,
    ) -> tuple[Tensor, Tensor]:
        rng = self._rng(*name)
        padded = length if padded_length is None else padded_length
        input_ids_BS = torch.full((batch_size, padded), self._pad_id, dtype=torch.int64)
        loss_mask_BS = torch.zeros(batch_size, padded, dtype=torch.bool)
        for row in range(batch_size):
            input_ids_BS[row, :length], loss_mask_BS[row, :length] = stream.window(length, rng)
        return input_ids_BS, loss_mask_BS

    def _rng(self, *name: object) -> random.Random:
        return random.Random(seeded(self._seed, *name))  # noqa: S311  # no secret
