"""Shows how far a search is: a bar on a terminal, a line for each find elsewhere."""

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status

from dflash_min.standard_streams import tell
from harness.schedule.minimise import Attempt
from harness.schedule.results import Reported, SearchResult
from harness.supervise.display import Display

_LINES = 10
"""Off a terminal, so many lines say how far it is, besides one for each find."""


class Bar(Display[Progress]):
    """Progress of a search on stderr; a context manager."""

    def __init__(self, prog: str, total: int) -> None:
        self._prog = prog
        self._total = total
        self._every = max(total // _LINES, 1)
        self._said = 0
        console = Console(stderr=True)
        super().__init__(_columns(prog, console) if console.is_terminal else None)
        if self._shown is not None:
            self._task = self._shown.add_task(prog, total=total, counts="")

    def show(self, result: SearchResult) -> None:
        """Show the counts."""
        done = len(result.tried)
        if self._shown is not None:
            self._shown.update(self._task, completed=done, counts=escape(result.said))
        elif done >= self._said + self._every:
            self._said = done
            self._say(f"{done} of {self._total} · {result.said}")

    def found(self, reported: Reported) -> None:
        """Say what was found."""
        codes = " ".join(reported.roots)
        self._say(f"found {codes}, {reported.said} replays: {reported.schedule.text}")

    def _say(self, text: str) -> None:
        if self._shown is not None:
            self._shown.console.print(escape(text), highlight=False)
        else:
            tell(f"{self._prog}: {text}")


def _columns(prog: str, console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn(prog),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class Shrinking(Display[Status]):
    """Progress of minimising on stderr; a context manager."""

    def __init__(self, prog: str) -> None:
        self._prog = prog
        self._tried = 0
        console = Console(stderr=True)
        start = f"{prog}: making it smaller"
        super().__init__(console.status(start) if console.is_terminal else None)

    def show(self, attempt: Attempt) -> None:
        """Show one variant that was tried."""
        self._tried += 1
        kept = "kept" if attempt.kept else "lost"
        said = f"smaller, variant {self._tried}: {attempt.what}: {kept}, {len(attempt.holds)} holds"
        if self._shown is not None:
            self._shown.update(escape(f"{self._prog}: {said}"))
        else:
            tell(f"{self._prog}: {said}")
