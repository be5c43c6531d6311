"""Text as byte tokens: read from files, and dealt out in windows by number.

The tokens of all documents make one stream. A window is a stretch of it; which one depends only on
the seed and the window's number, never on who asks or when.
"""

from __future__ import annotations

import hashlib
import json
import random
import sysconfig
from array import array
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from dflash_min.config import END_TOKEN, PAD_TOKEN, ROLE_TOKENS, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

_STDLIB_BYTES: Final = 2 * 1024 * 1024
_HELD_OUT_SHARE: Final = 0.05


def seeded(*parts: object) -> int:
    """Return a 63-bit seed that depends on nothing but `parts`, so on no generator's state."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Stream:
    """Tokens of documents one after another, and which of them are learned."""

    def __init__(self, tokens: Sequence[int] = (), learned: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with these tokens, learned where a (start, end) in ascending order says so."""
        self._tokens = array("h", tokens)
        self._learned = list(learned)
        self._counts: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: bytes | Sequence[int], *, learned: bool) -> None:
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
        drawn = rng.randrange(self.pairs)
        run = bisect_right(self._counts, drawn)
        pair = self._learned[run][1] - 1 - (self._counts[run] - drawn)
        start = rng.randint(max(0, pair + 2 - length), min(pair, len(self) - length))
        ids = torch.tensor(self._tokens[start : start + length], dtype=torch.int64)
        learned = torch.zeros(length, dtype=torch.bool)
        first = bisect_right(self._learned, start, key=lambda span: span[1])
        for low, high in self._learned[first:]:
            if low >= start + length:
                break
            learned[max(low - start, 0) : high - start] = True
        return ids, learned


class Text:
    """The training text and a held-out part of it, as numbered batches of windows."""

    def __init__(self, stream: Stream, seed: int, longest: int) -> None:
        """Hold out the end of the stream, if what is left still holds a window of `longest`."""
        cut = len(stream) - max(longest, int(len(stream) * _HELD_OUT_SHARE))
        self._seed = seed
        self._train = stream
        self._held_out: Stream | None = None
        if cut >= longest:
            train, held_out = stream.split(cut)
            if train.pairs and held_out.pairs:
                self._train, self._held_out = train, held_out

    @classmethod
    def load(cls, paths: Sequence[Path], seed: int, longest: int) -> Text:
        """Read UTF-8 text or .jsonl files; with no path, the Python standard library's sources.

        Args:
            paths: a name ending in .jsonl holds one JSON object a line, either {"text": ...} or
                {"messages": [{"role": ..., "content": ...}, ...]}. Of messages only what the
                assistant says is learned.
            seed: decides which windows are drawn.
            longest: tokens of the longest window that will be asked for.

        Raises:
            UsageError: naming the file, and the line where there is one, if it cannot be read, is
                empty, binary or malformed; or if there is too little text for one window.
        """
        stream = Stream()
        for path in paths:
            _read(path, stream)
        if not paths:
            _read_stdlib(stream)
        source = ", ".join(str(path) for path in paths) or "the standard library's sources"
        if len(stream) < longest:
            raise UsageError(
                f"{source}: {len(stream)} tokens of text, but a sequence takes {longest}"
            )
        if not stream.pairs:
            raise UsageError(f"{source}: no two assistant tokens in a row to learn from")
        return cls(stream, seed, longest)

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
        rng = random.Random(seeded(self._seed, *name))  # noqa: S311  # no secret
        padded = length if padded_length is None else padded_length
        input_ids_BS = torch.full((batch_size, padded), PAD_TOKEN, dtype=torch.int64)
        loss_mask_BS = torch.zeros(batch_size, padded, dtype=torch.bool)
        for row in range(batch_size):
            input_ids_BS[row, :length], loss_mask_BS[row, :length] = stream.window(length, rng)
        return input_ids_BS, loss_mask_BS


def _read_stdlib(stream: Stream) -> None:
    """Read Python's own sources, which every machine has, in order of name up to a size."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if len(stream) >= _STDLIB_BYTES:
            return
        stream.append(path.read_bytes(), learned=True)
        stream.append([END_TOKEN], learned=True)


def _read(path: Path, stream: Stream) -> None:
    before = len(stream)
    text = _decoded(path)
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                _append_line(line, f"{path}:{number}", stream)
    elif text.strip():
        stream.append(text.encode(), learned=True)
        stream.append([END_TOKEN], learned=True)
    if len(stream) == before:
        raise UsageError(f"{path}: the file is empty")


def _decoded(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if b"\0" in data:
        raise UsageError(f"{path}: binary, not text (a zero byte at offset {data.index(0)})")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (at offset {error.start})") from error


def _append_line(line: str, where: str, stream: Stream) -> None:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON ({error.msg}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits; brackets nested thousands deep.
        raise UsageError(f"{where}: not JSON that can be read ({error})") from error
    match row:
        case {"messages": [_, *_] as messages}:
            for role, content in _turns(messages, where):
                stream.append([ROLE_TOKENS[role]], learned=False)
                stream.append(_encoded(content, where), learned=role == "assistant")
                stream.append([END_TOKEN], learned=False)
        case {"text": str(text)}:
            if text.strip():
                stream.append(_encoded(text, where), learned=True)
                stream.append([END_TOKEN], learned=True)
        case _:
            raise UsageError(f'{where}: expected {{"text": "..."}} or {{"messages": [...]}}')


def _turns(messages: list[object], where: str) -> Iterator[tuple[str, str]]:
    for message in messages:
        match message:
            case {"role": str(role), "content": str(content)} if role in ROLE_TOKENS:
                yield role, content
            case _:
                roles = ", ".join(ROLE_TOKENS)
                raise UsageError(f'{where}: a message needs "content" and a "role" out of {roles}')


def _encoded(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: half a surrogate pair is no text") from error
