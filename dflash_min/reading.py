"""Texts and conversations in files, and what of their tokens is learned."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dflash_min.config import ROLE_TOKENS
from dflash_min.errors import UsageError
from dflash_min.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dflash_min.tokens import Tokens


_STDLIB_BYTES: Final = 2 * 1024 * 1024


def read(paths: Sequence[Path], tokens: Tokens) -> Stream:
    """Read UTF-8 text or .jsonl files; with no path, the Python standard library's sources.

    Args:
        paths: a name ending in .jsonl holds one JSON object a line, either {"text": ...} or
            {"messages": [{"role": ..., "content": ...}, ...]}. Of messages only what the assistant
            says is learned.
        tokens: the target's.

    Raises:
        UsageError: naming the file, and the line where there is one, if it cannot be read, is
            empty, binary or malformed.
    """
    reader = _Reader(tokens)
    for path in paths:
        reader.read(path)
    if not paths:
        reader.read_stdlib()
    return reader.stream


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
