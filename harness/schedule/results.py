"""The results of a search: ``search.json``, and ``search.jsonl`` while it runs.

Each run is a line that is added to the latter, so that a search that is killed loses none and one
of many runs does not write all of them again each time. The former is written with every find and
at the end, when the lines are all in it and go.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from harness.events.files import write_whole
from harness.schedule.outcome import KINDS, Kind, Outcome
from harness.schedule.plan import Delays, Plan, Priorities, Schedule

SEARCH_SCHEMA = 1
RESULTS = "search.json"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as text, and as what a token takes (``harness.schedule.token.Token``)."""

    text: str
    strategy: str
    holds: tuple[str, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, schedule: Schedule) -> "Asked":
        """Describe a schedule."""
        match schedule:
            case Plan():
                return cls(text=str(schedule), strategy="given", holds=schedule.texts)
            case Priorities() | Delays():
                return cls(text=str(schedule), strategy=schedule.strategy, seed=schedule.seed)


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the search. ``number`` counts schedules from 1, in the strategy's order."""

    number: int
    schedule: Asked
    kind: Kind
    roots: tuple[str, ...] = ()
    verdict: str = ""
    headline: str = ""
    folder: str = ""
    wall_s: float = 0.0


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that finds something, and how often it did so when it was run again.

    Attributes:
        number: of the run that found it first.
        roots: the codes of its root findings.
        headline: the report's.
        schedule: what to replay: holds, or the random schedule that found it where no holds force
            it.
        again: in so many of ``replays`` replays every step was made and the roots were the same.
        folder: the first finding run's folder.
        after_cpu_s: CPU seconds of all runs from the search's beginning to the first find.
        after_runs: schedules that had been run by then, this one included.
        token: of ``schedule``; empty where the command is not known.
    """

    number: int
    roots: tuple[str, ...]
    headline: str
    schedule: Asked
    again: int
    replays: int
    folder: str = ""
    after_cpu_s: float = 0.0
    after_runs: int = 0
    token: str = ""

    @property
    def said(self) -> str:
        """``2 of 2``."""
        return f"{self.again} of {self.replays}"


class SearchResult(msgspec.Struct, kw_only=True):
    """What a search has come to so far.

    Attributes:
        strategy: its name.
        description: what it runs and what it can promise.
        bound: so many schedules at most.
        counts: how many runs came to what.
        tried: the runs, in order of their ends.
        reported: what was found, in order of finding.
        complete: the strategy or the bound was run to its end.
        interrupted: it was stopped from the keyboard.
        failed_replays: in so many replays of what was found the harness itself failed.
        wall_s, cpu_s: seconds, and CPU seconds of the runs, replays included.
    """

    strategy: str
    description: str
    bound: int
    schema: int = SEARCH_SCHEMA
    counts: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    tried: list[Tried] = []
    reported: list[Reported] = []
    complete: bool = False
    interrupted: bool = False
    failed_replays: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, number: int, schedule: Schedule, outcome: Outcome) -> None:
        """Count one run."""
        self.counts[outcome.kind] += 1
        self.tried.append(
            Tried(
                number=number,
                schedule=Asked.of(schedule),
                kind=outcome.kind,
                roots=outcome.roots,
                verdict=outcome.verdict,
                headline=outcome.headline,
                folder=outcome.folder if outcome.kind != "clean" else "",
                wall_s=outcome.wall_s,
            )
        )

    @property
    def said(self) -> str:
        """The counts as words."""
        return " · ".join(f"{kind} {self.counts[kind]}" for kind in KINDS)


def write_result(path: Path, result: SearchResult, *, ended: bool = False) -> None:
    """Write the result so that a reader sees all of it or what was there before. Raises OSError.

    ``ended``: the lines of single runs are not needed beside it any more.
    """
    write_whole(path, msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n")
    if ended:
        _lines_of(path).unlink(missing_ok=True)


def add_line(path: Path, tried: Tried) -> None:
    """Add a run to the lines beside ``path``. Raises OSError."""
    with _lines_of(path).open("ab") as file:
        file.write(msgspec.json.encode(tried) + b"\n")


def read_result(path: Path) -> SearchResult:
    """Read a result, also of a search that goes on or was killed.

    Raises:
        OSError: there is none.
        msgspec.DecodeError: it is damaged; of the lines of single runs, which may be cut short
            where the machine went down, those are read that are whole.
    """
    result = msgspec.json.decode(path.read_bytes(), type=SearchResult)
    with suppress(FileNotFoundError):
        for line in _lines_of(path).read_bytes().splitlines()[len(result.tried) :]:
            with suppress(msgspec.DecodeError):
                tried = msgspec.json.decode(line, type=Tried)
                result.counts[tried.kind] += 1
                result.tried.append(tried)
    return result


def _lines_of(path: Path) -> Path:
    return path.with_suffix(".jsonl")
