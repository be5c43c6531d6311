"""``python -m harness.diagnose FILE...``: a diagnosis after the fact, from tracebacks and logs."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dflash_min.cli import Files, Names, parse, say
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.command import command
from harness.exits import ExitCode
from harness.expect import check_expectations, decide_exit
from harness.logs.reading import NotRecognisedError, diagnose_texts
from harness.render import WRITERS, write_all
from harness.render.output import reader_may_leave
from harness.render.terminal import print_report
from harness.render.view import View
from harness.report import make_report
from harness.supervise.folder import make_run_folder

PROG = "harness.diagnose"
_HELP = (
    "Diagnose what a program left behind: tracebacks, training logs, TORCH_LOGS text, TORCH_TRACE "
    "folders, dumps of py-spy and faulthandler, compressed with gzip or not, and run folders."
)


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
    """End with 0 if these are the root causes found."""

    expect_only: Annotated[Names, tyro.conf.arg(metavar="CODE[,CODE...]|clean")] = ()
    """End with 0 if these are all the causes found, the ones that follow included."""


@command(PROG)
def main(argv: list[str]) -> int:
    """Read, diagnose and report; returns the exit code."""
    args = parse(Args, argv, prog=PROG, description=_HELP)
    check_expectations(args.expect, args.expect_only, [c.EXPLANATION.code for c in CAUSES])
    if not args.files:
        raise UsageError("name a file, a folder or - for the standard input")
    folders = [Path(word) for word in args.files if _is_run_folder(Path(word))]
    if folders:
        if len(args.files) > 1:
            raise UsageError(f"{folders[0]} is a run folder: give it alone")
        if args.out is not None:
            raise UsageError("--out: a run folder's report is written there by harness.report")
        return _shown(args, folders[0], fresh=False, kept=False)
    if args.out is not None:
        return _texts(args, make_run_folder(args.out, "diagnose"), keep=True)
    with tempfile.TemporaryDirectory(prefix="compile-race-") as folder:
        return _texts(args, Path(folder), keep=False)


def _is_run_folder(path: Path) -> bool:
    return path.is_dir() and any(
        (path / name).exists() for name in ("events.jsonl", "ended.json", "run.json")
    )


def _texts(args: Args, folder: Path, *, keep: bool) -> int:
    try:
        for line in diagnose_texts(args.files, folder):
            say(PROG, line)
    except NotRecognisedError as error:
        if keep:
            folder.rmdir()
        say(PROG, str(error))
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
