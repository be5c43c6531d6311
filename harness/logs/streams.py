"""Takes texts apart: whose lines they are, and the facts that each one's lines hold.

A text can hold the lines of several processes, one among the other; each process's, and of those
torch's loggers' apart from the rest, are read by recognisers of their own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.logs import graph_breaks, recompiles, torch_trace, traceback
from harness.logs.facts import Fact, Place, Stream
from harness.logs.graph_breaks import GraphBreaks
from harness.logs.guards import TREE, GuardTrees
from harness.logs.prefix import Clean, clean
from harness.logs.recogniser import Recogniser
from harness.logs.recompiles import Recompiles
from harness.logs.said import Sayings
from harness.logs.source import MAX_LINE, Text
from harness.logs.stacks import Stacks, of_json
from harness.logs.torch_trace import TorchTrace
from harness.logs.traceback import Tracebacks

MAX_STREAMS = 512
_MAX_JSON = 16 << 20

_NEEDLES = tuple(
    word.encode()
    for word in (
        traceback.HEADING,
        "Exception in thread ",
        recompiles.RECOMPILING,
        recompiles.STANCE,
        recompiles.LIMIT,
        TREE,
        graph_breaks.BREAK,
        torch_trace.ENTRY,
        "hread 0x",
        "Thread ",
        "Process ",
        "Fatal Python error",
        "Timeout (",
        "Signal ",
        "exitcode",
        "Segmentation fault",
        "Aborted",
        "Bus error",
        "Killed",
        "died with <Signals",
        "orch version",
        "torch.__version__",
        "using FX to symbolically trace",
        "CURRENT_PATCHER",
        "current_level > 0",
        "no compiled frames",
        "cannot enter context",
        "_DeadlockError",
        "partially initialized module",
        "Cannot clear callbacks",
        "requires no threads in backwards",
        "is not a mapping",
        "StreamCapture",
        "stream is capturing",
        "capturing",
        "terminate called",
        "accessed from Triton",
        "invalid device context",
        "FailOnRecompileLimitHit",
        "flex_attention called",
        "CheckpointError",
    )
)
"""Bytes without which no recogniser begins."""
_QUIET_AFTER = 64


class _Triggers:
    """Where in a piece of text the needles are; four times as fast as one pattern of them all."""

    def __init__(self, chunk: bytes) -> None:
        self._chunk = chunk
        self._next = dict.fromkeys(_NEEDLES, -1)

    def after(self, at: int) -> int | None:
        """The first place of any of them from ``at`` on; None if there is none."""
        for needle, place in list(self._next.items()):
            if place < at:
                found = self._chunk.find(needle, at)
                if found < 0:
                    del self._next[needle]
                else:
                    self._next[needle] = found
        return min(self._next.values(), default=None)


@dataclass(slots=True)
class _Own:
    """The recognisers of one stream, and the number of the line at which they were last fed."""

    stream: Stream
    trace: Recogniser = field(default_factory=TorchTrace)
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    others: tuple[Recogniser, ...] = field(
        default_factory=lambda: (Recompiles(), GuardTrees(), GraphBreaks(), Stacks())
    )
    sayings: Recogniser = field(default_factory=Sayings)
    fed: int = 0

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Feed a line to all of them."""
        yield from self.trace.feed(line, place)
        if self.trace.busy:  # what a payload quotes was not said by the program
            return
        yield from self.tracebacks.feed(line, place)
        for recogniser in self.others:
            yield from recogniser.feed(line, place)
        if not self.tracebacks.reading:
            yield from self.sayings.feed(line, place)

    @property
    def busy(self) -> bool:
        return (
            self.trace.busy
            or self.tracebacks.busy
            or any(recogniser.busy for recogniser in self.others)
        )

    def finish(self) -> Iterator[Fact]:
        for recogniser in (self.trace, self.tracebacks, *self.others):
            yield from recogniser.finish()


class Streams:
    """Reads texts.

    Attributes:
        lines: lines read.
        left_out: lines of more streams than are followed.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.left_out = 0
        self._own: dict[tuple[str, int], _Own] = {}
        self._quiet = _QUIET_AFTER

    def read(self, text: Text) -> Iterator[tuple[Stream, Fact]]:
        """The facts of one text, with whose they are. Raises OSError if it cannot be opened."""
        number = 0
        json: list[bytes] | None = None
        for chunk in text.chunks():
            if number == 0 and text.size <= _MAX_JSON and chunk.lstrip()[:1] == b"[":
                json = []
            if json is not None:
                json.append(chunk)
                if text.size > _MAX_JSON:
                    json = None
            yield from self._chunk(chunk, text.name, number)
            number += chunk.count(b"\n")
        self.lines += number
        yield from self._finish(self._own.values())
        self._own.clear()
        self._quiet = _QUIET_AFTER
        dump = of_json(b"".join(json), Place(text.name, 1)) if json else None
        if dump is not None:
            yield Stream(pid=dump.pid), dump

    def _chunk(self, chunk: bytes, name: str, number: int) -> Iterator[tuple[Stream, Fact]]:
        """The facts of whole lines; ``number`` lines came before them.

        Lines are looked at one by one only from where something begins to where all is quiet again.
        """
        at, triggers = 0, _Triggers(chunk)
        while at < len(chunk):
            if self._quiet >= _QUIET_AFTER:
                found = triggers.after(at)
                begin = len(chunk) if found is None else chunk.rfind(b"\n", at, found) + 1
                begin = max(begin, at)
                number += chunk.count(b"\n", at, begin)
                at = begin
                if found is None:
                    return
                self._quiet = 0
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            number += 1
            yield from self._line(chunk[at : min(end, at + MAX_LINE)], Place(name, number))
            at = end + 1

    def _line(self, raw: bytes, place: Place) -> Iterator[tuple[Stream, Fact]]:
        line = clean(raw.decode("utf-8", "backslashreplace"))
        own = self._of(line)
        if own is None:
            self.left_out += 1
            self._quiet += 1
            return
        yield from ((own.stream, fact) for fact in own.feed(line, place))
        own.fed = place.line
        self._quiet = 0 if own.busy else self._quiet + 1
        if self._quiet >= _QUIET_AFTER:
            # A stream whose next line is far away has said what it had to say.
            late = [each for each in self._own.values() if place.line - each.fed >= _QUIET_AFTER]
            yield from self._finish(late)
            if any(each.busy for each in self._own.values()):
                self._quiet = 0

    def _finish(self, streams: Iterable[_Own]) -> Iterator[tuple[Stream, Fact]]:
        for own in streams:
            yield from ((own.stream, fact) for fact in own.finish())

    def _of(self, line: Clean) -> _Own | None:
        key = (line.rank, line.pid)
        if not line.pid and not line.rank and line.text.startswith("\t"):
            # A payload follows its entry, whose prefix it does not repeat.
            traced = next((k for k, o in reversed(self._own.items()) if o.trace.busy), None)
            key = traced or key
        own = self._own.get(key)
        if own is None:
            if len(self._own) >= MAX_STREAMS:
                return None
            own = self._own[key] = _Own(Stream(*key))
        return own
