"""``python -m harness.report RUN_FOLDER``: the report again, from what a run left on the disk."""

import io
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import tyro
from rich.console import Console

from dflash_min.cli import parse, say
from dflash_min.errors import UsageError
from harness.command import command
from harness.diagnosis.report import Report
from harness.diagnosis.shown import report_to_show
from harness.events.files import ENDED, EVENTS, RUN, event_files, write_whole
from harness.render import WRITERS, write_all
from harness.render.output import reader_may_leave
from harness.render.terminal import print_report
from harness.render.view import View

PROG = "harness.report"
WIDTH = 100
"""Columns of a text report in a file."""


@dataclass(frozen=True)
class Args:
    """What to report on, and how."""

    folder: tyro.conf.Positional[Path]
    """A run folder: what harness.run or harness.watch wrote under --out."""

    format: Literal["terminal", "md", "html", "json"] = "terminal"
    """What to print; the files in the run folder are written again in any case."""

    out: Path | None = None
    """Write to this file instead of printing."""

    inventory: bool = False
    """Print for each compiled function its cache entries, and why calls used none of them."""

    source: bool = True
    """Show the program's source lines, where the files are as they were when the run began."""


def make_report(folder: Path, *, no_source: bool = False) -> Report:
    """Diagnose a run folder again; ``no_source`` leaves the program's source lines out.

    The replay command is the one that started the run or, where the folder does not say, one that
    watches the recorded program.

    Raises:
        OSError: the folder cannot be read.
        UsageError: it is no run folder.
    """
    if not folder.is_dir():
        what = "is a file, not a run folder" if folder.exists() else "is no folder"
        raise UsageError(f"{folder} {what}")
    if not event_files(folder) and not any((folder / name).exists() for name in (ENDED, RUN)):
        raise UsageError(f"{folder} is no run folder: it has neither {EVENTS} nor {ENDED}")
    report = report_to_show(folder, no_source=no_source)
    return msgspec.structs.replace(report, replay=report.replay or _watch_again(report))


def _watch_again(report: Report) -> str:
    program = report.environment.argv[1:]
    return shlex.join(["python", "-m", "harness.watch", "--", *program]) if program else ""


@command(PROG)
def main(argv: list[str]) -> int:
    """Make the report; returns its exit code."""
    description = "Make the report of a run again from its folder."
    args = parse(Args, argv, prog=PROG, description=description)
    try:
        report = make_report(args.folder, no_source=not args.source)
    except OSError as error:
        raise UsageError(_reason(error)) from error
    if args.out is not None:
        try:
            write_whole(args.out, _text(args, report), mode=0o666)
        except OSError as error:
            raise UsageError(f"cannot write to --out {args.out}: {error.strerror}") from error
    written = True
    try:
        write_all(report, args.folder)
    except OSError as error:
        written = False
        # Somebody else's folder can still be read.
        say(PROG, f"the folder's files stay as they are: {_reason(error)}")
    if args.out is None:
        with reader_may_leave():
            if args.format == "terminal":
                inventory = args.inventory
                print_report(report, folder=args.folder, written=written, caches=inventory)
            else:
                sys.stdout.write(_text(args, report))
    return report.exit_code


def _text(args: Args, report: Report) -> str:
    if args.format != "terminal":
        return WRITERS[args.format](View.of(report, args.folder))
    file = io.StringIO()
    console = Console(file=file, width=WIDTH)
    print_report(report, console, args.folder, caches=args.inventory)
    return file.getvalue()


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


if __name__ == "__main__":
    sys.exit(main())
