"""The suite, ``gate.toml``: what is run, how often, on what, for how long, and what is right.

::

    schema = 1
    baseline = "gate-baseline.toml"   # beside this file
    budget_s = 300                    # for all of it

    [scenarios.no_grad_warmup]        # pytest's arguments; each test is compared on its own
    pytest = ["repro/test_no_grad_warmup.py"]

    [specs.clean_trainer]             # harness.run's flags, or watch = [flags, "--", program]
    run = ["--threads", "3", "--warmup", "grad"]
    expect = ["clean"]                # the roots that are right, as --expect names them

    [performance.watching]            # b's time, in a's, of commands that run in turn
    a = ["python", "program.py"]
    b = ["python", "-m", "harness.watch", "--", "program.py"]

Each table takes ``count``, ``gpus`` (0: GPUs are hidden from it) and ``budget_s``, too.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.expect import CLEAN, check_expectations
from harness.gating.tables import check_keys, convert, header_lines, read_toml

SUITE_SCHEMA = 1
PASSED = "passed"
"""What is right of a test."""
MEASURED = "measured"
"""What is right of a performance entry without a baseline."""

_KEYS = ("schema", "baseline", "budget_s", "gpu_busy_gib", "scenarios", "specs", "performance")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

Kind = Literal["scenario", "run", "watch", "performance"]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]
_Gpus = Annotated[int, msgspec.Meta(ge=0, le=64)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 3600)]
_Words = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class _Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gpus: _Gpus = 0
    budget_s: _Seconds = 300.0


class _Scenario(_Common, frozen=True, kw_only=True):
    pytest: _Words
    count: _Count = 1


class _Spec(_Common, frozen=True, kw_only=True):
    run: tuple[str, ...] | None = None
    watch: tuple[str, ...] | None = None
    expect: _Words = (CLEAN,)
    count: _Count = 1


class _Performance(_Common, frozen=True, kw_only=True):
    a: _Words
    b: _Words
    number: str = ""
    count: Annotated[int, msgspec.Meta(ge=3, le=1000)] = 5


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal[1]
    baseline: str
    budget_s: _Seconds = 3600.0
    gpu_busy_gib: Annotated[float, msgspec.Meta(gt=0)] = 2.0


@dataclass(frozen=True)
class Entry:
    """One thing to run.

    Attributes:
        name: its table's name.
        kind: what it is.
        words: pytest's arguments, or a command's flags (``a`` of a performance entry).
        other: ``b`` of a performance entry.
        count: how often it is run; pairs, of a performance entry.
        gpus: how many GPUs it gets.
        budget_s: seconds for one run.
        expect: the result that is right.
        schedule: the schedule it runs under; empty: its threads run as they like.
        number: pattern whose group finds a performance figure in what a command prints; empty:
            the figure is the command's seconds.
    """

    name: str
    kind: Kind
    words: tuple[str, ...]
    other: tuple[str, ...] = ()
    count: int = 1
    gpus: int = 0
    budget_s: float = 300.0
    expect: str = PASSED
    schedule: str = ""
    number: str = ""


@dataclass(frozen=True)
class Suite:
    """All entries in the file's order, where the baseline is, and seconds for all of it."""

    path: Path
    baseline: Path
    budget_s: float
    gpu_busy_gib: float
    entries: tuple[Entry, ...]

    @property
    def root(self) -> Path:
        """The folder of the suite, in which everything is run."""
        return self.path.parent


def read_suite(path: Path) -> Suite:
    """Read ``gate.toml``.

    Raises:
        UsageError: it cannot be read or makes no sense; with the line.
    """
    path = path.absolute()
    text, raw = read_toml(path)
    check_keys(raw, _KEYS, path)
    tables = ("scenarios", "specs", "performance")
    head = convert({k: v for k, v in raw.items() if k not in tables}, _Head, path, 1, "suite")
    entries: list[Entry] = []
    for table in tables:
        named = raw.get(table, {})
        if not isinstance(named, dict):
            raise UsageError(f"{path}: {table} must be tables, [{table}.NAME]")
        for name, fields in named.items():
            line = next(iter(header_lines(text, f"[{table}.{name}]")), 1)
            entries.append(_entry(table, name, fields, path, line))
    if not entries:
        raise UsageError(f"{path}: it names nothing to run")
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: two entries are called {name}")
    return Suite(
        path, path.parent / head.baseline, head.budget_s, head.gpu_busy_gib, tuple(entries)
    )


def _entry(table: str, name: str, fields: Any, path: Path, line: int) -> Entry:  # noqa: ANN401
    what = f"[{table}.{name}]"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{path}:{line}: {what}: a name is made of letters, digits, _, - and .")
    try:
        match table:
            case "scenarios":
                return _scenario(name, convert(fields, _Scenario, path, line, what))
            case "specs":
                return _spec(name, convert(fields, _Spec, path, line, what))
            case _:
                return _performance(name, convert(fields, _Performance, path, line, what))
    except UsageError as error:
        place = f"{path}:{line}: "
        said = str(error)
        raise UsageError(said if said.startswith(place) else f"{place}{what}: {said}") from error


def _scenario(name: str, given: _Scenario) -> Entry:
    return Entry(
        name,
        "scenario",
        given.pytest,
        count=given.count,
        gpus=given.gpus,
        budget_s=given.budget_s,
    )


def _spec(name: str, given: _Spec) -> Entry:
    if (given.run is None) == (given.watch is None):
        raise UsageError("it takes run = [...] or watch = [...]")
    kind: Kind = "watch" if given.run is None else "run"
    words = given.watch if given.run is None else given.run
    assert words is not None
    flags = words[: words.index("--")] if "--" in words else words
    for flag in flags:
        taken = flag.partition("=")[0]
        if taken in {"--out", "--json", "--expect", "--expect-only", "--passthrough", "--explore"}:
            raise UsageError(f"{taken} is the gate's own; say expect = [...]")
    check_expectations(given.expect, (), [cause.EXPLANATION.code for cause in CAUSES])
    return Entry(
        name,
        kind,
        words,
        count=given.count,
        gpus=given.gpus,
        budget_s=given.budget_s,
        expect="+".join(sorted(given.expect)),
        schedule=_schedule(flags),
    )


def _performance(name: str, given: _Performance) -> Entry:
    if given.number:
        try:
            groups = re.compile(given.number).groups
        except re.error as error:
            raise UsageError(f"number is no pattern: {error}") from error
        if groups != 1:
            raise UsageError("number must have one group, the figure")
    return Entry(
        name,
        "performance",
        given.a,
        given.b,
        count=given.count,
        gpus=given.gpus,
        budget_s=given.budget_s,
        expect=MEASURED,
        number=given.number,
    )


def _schedule(flags: Sequence[str]) -> str:
    """The schedule that flags name: a plan's name, or a digest of a token."""
    joined = [part for flag in flags for part in (flag.split("=", 1) if "=" in flag else [flag])]
    for at, word in enumerate(joined[:-1]):
        if word == "--schedule":
            return Path(joined[at + 1]).stem
        if word == "--schedule-token":
            return f"token-{hashlib.sha256(joined[at + 1].encode()).hexdigest()[:12]}"
    return ""
