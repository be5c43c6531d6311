"""Opens texts: files, compressed ones, folders of traces and the standard input, line by line.

Text may be in UTF-16 or UTF-32 where a byte order mark says so. Whatever the bytes are, reading
them takes bounded memory: a line is cut at ``MAX_LINE``.
"""

import codecs
import gzip
import io
import stat
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from dflash_min.errors import UsageError
from harness.events.files import open_regular

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN = "-"
CHUNK = 1 << 20
MAX_LINE = 1 << 16
_GZIP = b"\x1f\x8b"
_MAX_PACKED = 4
"""So often may a text be compressed, each time over the last."""
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
"""Encodings by their byte order marks; UTF-32's little-endian one begins with UTF-16's."""
_TRACES = ("*torch_trace*.log", "*torch_trace*.log.gz")
_MAX_FILES = 4096


@dataclass(slots=True)
class Text:
    """One text.

    Attributes:
        name: under which it is cited.
        given: what errors call it: its path as it was typed.
        path: where it is; None for the standard input.
        size: bytes read so far, as they were before they were compressed.
        damage: why it could not be read to its end; empty if it could.
    """

    name: str
    given: str
    path: Path | None
    size: int = 0
    damage: str = ""
    _pushed: bytes = field(default=b"", repr=False)

    def chunks(self) -> Iterator[bytes]:
        """The text in pieces that end at the end of a line, or where a line is too long.

        Raises:
            OSError: it cannot be opened.
        """
        rest = b""
        for chunk in self._blocks():
            self.size += len(chunk)
            whole, newline, tail = (rest + chunk).rpartition(b"\n")
            if newline:
                yield whole + newline
                rest = tail
            else:
                rest = tail
            if len(rest) > 4 * MAX_LINE:
                yield rest[:MAX_LINE] + b"\n"
                rest = b""
        if rest:
            yield rest

    def _blocks(self) -> Iterator[bytes]:
        with self._open() as raw:
            try:
                yield from _decoded(_unpacked(raw))
            except (OSError, EOFError, zlib.error) as error:
                self.damage = str(error) or type(error).__name__

    def _open(self) -> io.BufferedReader:
        if self.path is None:
            # The descriptor stays open: it is not ours.
            return io.BufferedReader(_Borrowed(sys.stdin.buffer), CHUNK)
        if stat.S_ISFIFO(self.path.stat().st_mode):
            # Of one that was named to be read, the writer is waited for.
            return self.path.open("rb")
        return cast("io.BufferedReader", open_regular(self.path))


def _unpacked(file: io.BufferedReader | gzip.GzipFile) -> io.BufferedReader | gzip.GzipFile:
    for _ in range(_MAX_PACKED):
        if file.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
            return file
        file = gzip.GzipFile(fileobj=file, mode="rb")
    return file


def _decoded(file: io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    """The blocks of a file, in UTF-8 where it begins with a mark."""
    head = file.peek(4)[:4]
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    decoder = codecs.getincrementaldecoder(encoding)("backslashreplace") if encoding else None
    # Of what is cut short, read() gives nothing of the last piece.
    while chunk := file.read1(CHUNK):
        yield decoder.decode(chunk).encode() if decoder else chunk


class _Borrowed(io.RawIOBase):
    """Reads from a file without closing it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = cast("io.BufferedReader", file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        data = self._file.read1(len(view))
        view[: len(data)] = data
        return len(data)


def texts_of(words: tuple[str, ...]) -> list[Text]:
    """The texts that are named on a command line.

    Raises:
        UsageError: one of them is not there, or is a folder without traces.
    """
    found: list[Text] = []
    for word in words:
        if word == STDIN:
            if sys.stdin is None:
                raise UsageError("the standard input is closed")
            found.append(Text("stdin", "stdin", None))
            continue
        path = Path(word)
        if not path.exists():
            raise UsageError(f"there is no {word}")
        if path.is_dir():
            found += _traces(path)
        else:
            name = path.name if path.is_file() else word
            found.append(Text(name, word, path))
    names = [text.name for text in found]
    for text in found:  # two of one name are told apart by their folders
        if names.count(text.name) > 1 and text.path is not None:
            text.name = "/".join(text.path.parts[-2:])
    return found


def _traces(folder: Path) -> list[Text]:
    paths = sorted({path for pattern in _TRACES for path in folder.rglob(pattern)})
    if not paths:
        raise UsageError(f"{folder} has no torch_trace logs (dedicated_log_torch_trace_*.log)")
    return [Text(path.name, str(path), path) for path in paths[:_MAX_FILES]]
