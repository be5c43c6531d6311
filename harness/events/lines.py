"""Reads files of events in batches: with bounded memory, whatever is in the files.

A recording can end anywhere, since the process may have been killed in the middle of a line; two
writers may have mixed their bytes; a disk may have returned others than were written; and what lies
in a run folder under the right name need be no file at all. What cannot be read is counted.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from harness.events.files import open_regular
from harness.events.program import HeaderData
from harness.events.schema import SCHEMA_VERSION

CHUNK = 1 << 20
MAX_LINE = 32 << 20
"""A longer line is given up."""
MAX_POINTS = 64
"""So many unknown points are counted one by one, the others together."""

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What reading hostile JSON raises: malformed, of other types, too deep, numbers too large."""


@dataclass(slots=True)
class Lines:
    """How reading went.

    Attributes:
        unknown: events of points that this reader does not know, by point.
        damaged: lines that cannot be read.
        cut: files whose last line is cut.
        unreadable: files that cannot be read, and why.
        newer: the format's version, where the recording is of a later one than this reader.
    """

    unknown: dict[str, int] = field(default_factory=dict)
    damaged: int = 0
    cut: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    newer: int = 0

    def count_unknown(self, point: str) -> None:
        """Count one more event of an unknown point."""
        if point not in self.unknown and len(self.unknown) >= MAX_POINTS:
            point = "other points"
        self.unknown[point] = self.unknown.get(point, 0) + 1


class Peek(msgspec.Struct):
    """What a line needs for its point to be told."""

    point: str = ""
    pid: int = 0
    seq: int = 0


_peek = msgspec.json.Decoder(Peek).decode


class Reader:
    """Reads files of one kind of events.

    Attributes:
        lines: how reading went so far.
    """

    def __init__(
        self,
        kinds: Any,  # noqa: ANN401 - a union, for which there is no type
        lines: Lines,
        on_unknown: Callable[[int, int], object] = lambda pid, seq: None,  # noqa: ARG005
    ) -> None:
        """Read events of ``kinds``, a union of structs told apart by ``point``.

        Args:
            kinds: the union.
            lines: where to count what could not be read.
            on_unknown: called with pid and seq of each event of an unknown point.
        """
        self.lines = lines
        self._kinds = kinds
        self._decoder = msgspec.json.Decoder(kinds)
        self._points = {str(kind.__struct_config__.tag) for kind in kinds.__args__}
        self._on_unknown = on_unknown

    def read(self, path: Path, *, may_be_gone: bool = False) -> Iterator[list[Any]]:
        """The file's events, some at a time. What cannot be read is counted, and never raises.

        Args:
            path: the file.
            may_be_gone: that the file is no longer there is nothing to be told.
        """
        try:
            with open_regular(path) as file:
                for chunk in self._chunks(file):
                    yield self._decode(chunk)
        except FileNotFoundError:
            if not may_be_gone:
                self.lines.unreadable[path.name] = "it is gone"
        except OSError as error:
            self.lines.unreadable[path.name] = error.strerror or str(error)

    def _chunks(self, file: BinaryIO) -> Iterator[bytes]:
        """The file in pieces that end at the end of a line."""
        rest = b""
        given_up = False
        while chunk := file.read(CHUNK):
            if given_up:
                _, newline, chunk = chunk.partition(b"\n")
                given_up = not newline
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield whole + newline
            if len(rest) > MAX_LINE:
                self.lines.damaged += 1
                given_up, rest = True, b""
        self.lines.cut += bool(rest) or given_up

    def _decode(self, chunk: bytes) -> list[Any]:
        try:
            events: list[Any] = self._decoder.decode_lines(chunk)
        except UNREADABLE:
            events = []
        # Several events in one line, or one in several lines, are no lines of a recorder's.
        if len(events) == chunk.count(b"\n"):
            return events
        return [e for line in chunk.split(b"\n") if line.strip() for e in self._one(line)]

    def _one(self, line: bytes) -> Iterator[Any]:
        try:
            yield self._decoder.decode(line)
        except UNREADABLE:
            mended = self._without_surrogates(line)
            if mended is not None:
                yield mended
            else:
                yield from self._unreadable(line)

    def _unreadable(self, line: bytes) -> Iterator[Any]:
        try:
            peek = _peek(line)
        except UNREADABLE:
            peek = Peek()
        if peek.point and peek.point not in self._points:
            self.lines.count_unknown(peek.point)
            self._on_unknown(peek.pid, peek.seq)
            return
        header = self._header(line) if peek.point == "header" else None
        if header is None:
            self.lines.damaged += 1
        else:
            yield header

    def _header(self, line: bytes) -> object:
        """A header of a later version, as far as its fields are those of this one."""
        try:
            raw = json.loads(line)
            fields = _header_fields(raw["data"])
            if fields["schema"] <= SCHEMA_VERSION:
                return None
            return msgspec.convert({**raw, "data": fields}, self._kinds)
        except (*UNREADABLE, KeyError, TypeError, AttributeError):
            return None

    def _without_surrogates(self, line: bytes) -> object:
        r"""Read a line with lone surrogates, which stand for a path's undecodable bytes.

        Python's JSON writes and reads them, the JSON standard knows none; they are kept as
        ``\udcff``.
        """
        if b"\\ud" not in line:
            return None
        try:
            return msgspec.convert(_mend(json.loads(line)), self._kinds)
        except UNREADABLE:
            return None


def _header_fields(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a header that this version knows and can read; what is missing is empty."""
    empty = {str: "", int: 0, float: 0.0, bool: False, tuple[str, ...]: ()}
    known = {}
    for field_ in msgspec.structs.fields(HeaderData):
        try:
            known[field_.name] = msgspec.convert(data[field_.name], field_.type)
        except (KeyError, *UNREADABLE):
            if field_.required:
                known[field_.name] = next(
                    (value for kind, value in empty.items() if field_.type == kind), 0
                )
    return known


def _mend(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case list():
            return [_mend(item) for item in value]
        case dict():
            return {_mend(key): _mend(item) for key, item in value.items()}
        case _:
            return value
