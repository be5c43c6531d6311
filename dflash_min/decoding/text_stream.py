"""Text while its tokens arrive: whole characters only, and nothing that steers a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_min.tokens import Tokens

_HALF: Final = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer puts in the place of bytes that are no character, or not yet one."""


class TextStream:
    """Decodes tokens piece by piece to what decoding all of them at once would give.

    A character of several bytes is held back until the last of them is there. What was decoded is
    decoded again with what follows, since words can begin with a space that is only there behind
    another word; a line break ends that.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._line: list[int] = []
        self._given = 0

    def add(self, ids: Sequence[int]) -> str:
        """Take more tokens and return the characters that are certain by now."""
        self._line += ids
        text = self._tokens.decode(self._line)
        certain = text.removesuffix(_HALF)
        new = certain[self._given :]
        self._given = len(certain)
        if text.endswith("\n"):
            self._line, self._given = [], 0
        return new

    def end(self) -> str:
        """Return what was held back."""
        left = self._tokens.decode(self._line)[self._given :]
        self._line, self._given = [], 0
        return left


def harmless(text: str) -> str:
    """Escape every character that prints nothing, but for line breaks and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
