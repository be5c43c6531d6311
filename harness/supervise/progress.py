"""Shows that a run is alive: one line on a terminal, the program's own output, or neither."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.events.files import EVENTS, segments
from harness.supervise.display import Display

_REFRESH_S = 0.25
_CHUNK = 1 << 20
_STARTING = "starting"
# A program that refuses its arguments does so before any of these points.
_WORK = frozenset({"wrapper", "dynamo_compile", "guard_miss", "step", "phase"})


class _Data(msgspec.Struct):
    name: str = ""
    step: int = 0


class _Line(msgspec.Struct):
    point: str
    edge: str = ""
    data: _Data | None = None


class Growing:
    """A file that another process appends to, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_bytes(self) -> bytes:
        """Return what has come since the last call, at most a mebibyte; nothing if unreadable."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read(_CHUNK)
        except OSError:
            return b""
        self._offset += len(new)
        return new

    def new_lines(self) -> list[bytes]:
        """Return the lines that have been completed since the last call."""
        *lines, self._rest = (self._rest + self.new_bytes()).split(b"\n")
        return lines


class Counters:
    """What a recording says so far, counted from its lines.

    ``at_work``: the program got past its arguments: it is in a phase, or it called compiled code.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events = Growing(folder / EVENTS)
        self._segment: tuple[str, Growing] | None = None
        self._decode = msgspec.json.Decoder(_Line).decode
        self.at_work = False
        self.phase = _STARTING
        self.step: int | None = None
        self.threads = 0
        self.compiles = 0
        self.misses = 0
        self.errors = 0

    def update(self) -> None:
        """Read what has come since the last call."""
        self._read(self._events)
        for newest in segments(self._folder)[-1:]:
            if self._segment is None or self._segment[0] != newest.name:
                self._segment = (newest.name, Growing(newest))
            self._read(self._segment[1])

    def text(self) -> str:
        """Return the counts as words."""
        step = [] if self.step is None else [f"step {self.step}"]
        counts = [
            f"{self.threads} threads started",
            f"{self.compiles} compiles",
            f"{self.misses} guard misses",
            f"{self.errors} errors",
        ]
        return " · ".join([self.phase, *step, *counts])

    def _read(self, file: Growing) -> None:
        while lines := file.new_lines():
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError):
                    self._count(self._decode(line))

    def _count(self, line: _Line) -> None:
        self.at_work = self.at_work or line.point in _WORK
        match line.point, line.edge:
            case "phase", "enter" if line.data is not None:
                self.phase = line.data.name
            case "step", _ if line.data is not None:
                self.step = max(self.step or 0, line.data.step)
            case "thread_start", _:
                self.threads += 1
            case "dynamo_compile", "enter":
                self.compiles += 1
            case "guard_miss", _:
                self.misses += 1
            case "thread_error", _:
                self.errors += 1


class Progress(Display[Live]):
    """Shows progress on stderr while the program runs; a context manager.

    Args:
        prog: the command's name.
        folder: the run folder.
        log: the program's output, to be copied to stderr; None: show one line instead.
        quiet: the program itself writes to our terminal, so one line is all.

    That line names the run folder, so that it can be found while the program hangs. Where the
    program's output is kept back it comes once the program is at work: one that refuses its
    arguments has said so in one line, and its folder is gone.
    """

    def __init__(self, prog: str, folder: Path, *, log: Path | None, quiet: bool) -> None:
        self._prog = prog
        self._start = f"{prog}: recording in {folder}"
        self._quiet = quiet
        self._gone = False
        self._counters = Counters(folder)
        self._log = None if log is None else Growing(log)
        self._began = self._next = time.monotonic()
        console = Console(stderr=True)
        live = not quiet and log is None and console.is_terminal
        super().__init__(
            Live(console=console, auto_refresh=False, transient=True) if live else None
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._reader_may_leave():
            self._copy_log()
            super().__exit__(kind, error, traceback)

    def tick(self) -> None:
        """Show what is new, at most four times a second."""
        now = time.monotonic()
        if now < self._next or self._gone:
            return
        self._next = now + _REFRESH_S
        with self._reader_may_leave():
            self._show(now)

    def _show(self, now: float) -> None:
        if self._shown is not None or (self._start and not self._quiet):
            self._counters.update()
        if self._start and (self._quiet or self._counters.at_work):
            print(self._start, file=sys.stderr, flush=True)
            self._start = ""
        self._copy_log()
        if self._shown is not None:
            minutes, seconds = divmod(int(now - self._began), 60)
            line = f"{self._prog} {minutes:02d}:{seconds:02d} · {self._counters.text()}"
            self._shown.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    @contextlib.contextmanager
    def _reader_may_leave(self) -> Iterator[None]:
        """Go on without showing anything when the terminal has vanished: the run is what counts."""
        try:
            yield
        except OSError:
            self._gone = True

    def _copy_log(self) -> None:
        if self._log is None:
            return
        while new := self._log.new_bytes():
            sys.stderr.buffer.write(new)
            sys.stderr.buffer.flush()
