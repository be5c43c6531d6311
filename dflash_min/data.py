"""Text as tokens: read from files, and dealt out in windows by number.

The tokens of all documents make one stream. A window is a stretch of it; which one depends only on
the seed and the window's number, never on who asks or when.

Windows know no documents: one may begin in the middle of a conversation and reach into the next. So
no text is too short or too long for a length, and nothing is padded; but a block may follow on text
of another conversation, which it never does at inference. All of a window is its blocks' context,
as if it were one text.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import sysconfig
from array import array
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from dflash_min.config import ROLE_TOKENS
from dflash_min.errors import UsageError
from dflash_min.tokens import ByteTokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from dflash_min.tokens import Tokens

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
        """Read UTF-8 text or .jsonl files; with no path, the Python standard library's sources.

        Args:
            paths: a name ending in .jsonl holds one JSON object a line, either {"text": ...} or
                {"messages": [{"role": ..., "content": ...}, ...]}. Of messages only what the
                assistant says is learned.
            seed: decides which windows are drawn.
            longest: tokens of the longest window that will be asked for.
            tokens: the target's; bytes if not given.

        Raises:
            UsageError: naming the file, and the line where there is one, if it cannot be read, is
                empty, binary or malformed; or if there is too little text for one window.
        """
        tokens = ByteTokens() if tokens is None else tokens
        reader = _Reader(tokens)
        for path in paths:
            reader.read(path)
        if not paths:
            reader.read_stdlib()
        stream = reader.stream
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


class _Reader:
    """Reads files into one stream of tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self.stream = Stream()
        self._tokens = tokens

    def read_stdlib(self) -> None:
        """Read Python's own sources, which every machine has, in order of name up to a size."""
        size = 0
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            if size >= _STDLIB_BYTES:
                return
            source = path.read_bytes()
            self._document(source.decode())
            size += len(source) + 1

    def read(self, path: Path) -> None:
        """Read text, or the rows of a .jsonl file."""
        before = len(self.stream)
        text = _decoded(path)
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.split("\n"), start=1):
                if line.strip():
                    self._row(_parsed(line, f"{path}:{number}"), f"{path}:{number}")
        elif text.strip():
            self._document(text)
        if len(self.stream) == before:
            raise UsageError(f"{path}: the file is empty")

    def _document(self, text: str) -> None:
        self.stream.append(self._tokens.encode(text), learned=True)
        self.stream.append([self._tokens.end_id], learned=True)

    def _row(self, row: object, where: str) -> None:
        match row:
            case {"messages": [_, *_] as messages}:
                self._conversation(list(_turns(messages, where)), where)
            case {"text": str(text)}:
                if _whole(text, where).strip():
                    self._document(text)
            case _:
                raise UsageError(f'{where}: expected {{"text": "..."}} or {{"messages": [...]}}')

    def _conversation(self, messages: list[tuple[str, str]], where: str) -> None:
        try:
            pieces = self._tokens.chat(messages)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        for ids, learned in pieces:
            self.stream.append(ids, learned=learned)


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


def _parsed(line: str, where: str) -> object:
    try:
        row: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON ({error.msg}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits; brackets nested thousands deep.
        raise UsageError(f"{where}: not JSON that can be read ({error})") from error
    return row


def _turns(messages: list[object], where: str) -> Iterator[tuple[str, str]]:
    for message in messages:
        match message:
            case {"role": str(role), "content": str(content)} if role in ROLE_TOKENS:
                yield role, _whole(content, where)
            case _:
                roles = ", ".join(ROLE_TOKENS)
                raise UsageError(f'{where}: a message needs "content" and a "role" out of {roles}')


def _whole(text: str, where: str) -> str:
    """Return the text, which JSON allows to hold what no file can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: half a surrogate pair is no text") from error
    return text
