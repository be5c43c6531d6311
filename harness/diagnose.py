"""``python -m harness.diagnose FILE...``: a diagnosis after the fact, from tracebacks and logs."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import tyro

from dflash_min.cli import Files, Names, parse, say
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.command import command
from harness.events.files import ENDED, EVENTS, RUN
from harness.exits import ExitCode
from harness.expect import CLEAN, check_expectations, decide_exit
from harness.logs.reading import NotRecognisedError, diagnose_texts
from harness.render import WRITERS, write_all
from harness.render.output import reader_may_leave
from harness.render.terminal import print_report
from harness.render.view import View
from harness.report import make_report
from harness.supervise.folder import make_run_folder, missing_parents, remove_run_folder

PROG = "harness.diagnose"
_HELP = (
    "Diagnose what a program left behind: tracebacks, training logs, TORCH_LOGS text, TORCH_TRACE "
    "folders, dumps of py-spy and faulthandler, compressed with gzip or not, and run folders."
)
_PARTS = (EVENTS, RUN, ENDED, "events-*.jsonl", "steady-*.jsonl", "report.*", "trace.json")
_HINT = "; {} may be a part of a run folder: give the whole folder"


@dataclass(frozen=True)
class Args:
    """What to read, and what to do with what is found."""

    files: tyro.conf.Positional[Files] = ()
    """Files and folders; - is the standard input. Several are taken for one run's."""

    json: bool = False
    """Print the report as JSON."""

    out: Path | None = None
    """Keep the report and what it was made from in a new folder below this one."""

    expect: Annotated[Names, tyro.conf.arg(metavar="CODE[,CODE...]|clean")] = ()
    """End with 0 if these are the root causes found. Takes every word up to the next option: FILE
    comes first, after ``--``, or after ``--expect=CODE``."""

    expect_only: Annotated[Names, tyro.conf.arg(metavar="CODE[,CODE...]|clean")] = ()
    """End with 0 if these are all the causes found, the ones that follow included. FILE stands as
    with ``--expect``."""


@command(PROG)
def main(argv: list[str]) -> int:
    """Read, diagnose and report; returns the exit code."""
    args = parse(Args, argv, prog=PROG, description=_HELP)
    known = [cause.EXPLANATION.code for cause in CAUSES]
    _refuse_taken_files(args, known)
    check_expectations(args.expect, args.expect_only, known)
    if not args.files:
        raise UsageError("name a file, a folder or - for the standard input")
    folders = [Path(word) for word in args.files if _is_run_folder(Path(word))]
    if folders:
        if len(args.files) > 1:
            raise UsageError(f"{folders[0]} is a run folder: give it alone")
        if args.out is not None:
            raise UsageError("--out: a run folder's report is written there by harness.report")
        return _shown(args, folders[0], fresh=False, kept=False)
    _refuse_parts(args.files)
    if args.out is not None:
        made = missing_parents(args.out)
        return _texts(args, make_run_folder(args.out, "diagnose"), made, keep=True)
    with tempfile.TemporaryDirectory(prefix="compile-race-") as folder:
        return _texts(args, Path(folder), [], keep=False)


def _refuse_taken_files(args: Args, known: Sequence[str]) -> None:
    """Say how to write it where an option that takes every word has taken a file."""
    for flag, words in (("--expect", args.expect), ("--expect-only", args.expect_only)):
        for word in words:
            if word not in {CLEAN, *known} and Path(word).exists():
                raise UsageError(
                    f"{flag} has taken the file {word}: write {flag}=CODE, or -- before {word}"
                )


def _is_run_folder(path: Path, *, without: str = "") -> bool:
    """Whether a folder holds what a run leaves, another file than ``without``."""
    names = {EVENTS, ENDED, RUN} - {without}
    return path.is_dir() and any((path / name).exists() for name in names)


def _refuse_parts(words: Sequence[str]) -> None:
    for path in map(Path, words):
        if _is_part(path) and path.is_file() and _is_run_folder(path.parent, without=path.name):
            raise UsageError(f"{path} is a part of a run folder: give the folder, {path.parent}")


def _is_part(path: Path) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in _PARTS)


def _texts(args: Args, folder: Path, made: Sequence[Path], *, keep: bool) -> int:
    try:
        for line in diagnose_texts(args.files, folder):
            say(PROG, line)
    except (NotRecognisedError, UsageError) as error:
        if keep:
            remove_run_folder(folder, made)
        if isinstance(error, UsageError):
            raise
        part = next((word for word in args.files if _is_part(Path(word))), "")
        say(PROG, f"{error}{_HINT.format(part) if part else ''}")
        return ExitCode.NOTHING_RAN
    return _shown(args, folder, fresh=keep, kept=keep)


def _shown(args: Args, folder: Path, *, fresh: bool, kept: bool) -> int:
    """Print the report of a folder; ``fresh``: write its files; ``kept``: name it."""
    try:
        report = make_report(folder)
        if fresh:
            write_all(report, folder)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from error
    with reader_may_leave():
        if args.json:
            sys.stdout.write(WRITERS["json"](View.of(report, folder)))
        else:
            print_report(report, folder=folder, written=fresh, kept=kept)
            if not kept:
                print(f"python -m {PROG} --out DIR ... keeps the whole report.")
    return decide_exit(report, args.expect, args.expect_only)


if __name__ == "__main__":
    sys.exit(main())
