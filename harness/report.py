"""``python -m harness.report RUN_FOLDER``: the report again, from what a run left on the disk."""

import contextlib
import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import tyro
from rich.console import Console

from dflash_min.cli import fail, parse
from harness.diagnosis.build import Expectations, diagnose
from harness.diagnosis.report import Report, loads
from harness.render import WRITERS, file_name, write_all, write_whole
from harness.render.output import reader_may_leave
from harness.render.terminal import print_report
from harness.render.view import View
from harness.supervise.ended import ENDED

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


def make_report(folder: Path) -> Report:
    """Diagnose a run folder again.

    What the recording cannot hold (the command that started the run, what was expected of it) is
    taken from the folder's earlier report, if there is one; without one, the command watches the
    recorded program.

    Raises:
        OSError: the folder cannot be read.
        ValueError: it is no run folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    if not any(folder.glob("events*.jsonl")) and not (folder / ENDED).exists():
        raise ValueError(f"{folder} is no run folder: it has neither events.jsonl nor {ENDED}")
    earlier = _earlier(folder)
    report = diagnose(folder, Expectations(threads=earlier.expected_threads if earlier else None))
    replay = report.replay or (earlier.replay if earlier else "") or _watch_again(report)
    return msgspec.structs.replace(report, replay=replay)


def _earlier(folder: Path) -> Report | None:
    try:
        return loads((folder / file_name("json")).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def _watch_again(report: Report) -> str:
    program = report.environment.argv[1:]
    return shlex.join(["python", "-m", "harness.watch", "--", *program]) if program else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the report. Returns its exit code; SystemExit(2) after one line for errors of use."""
    args = parse(
        Args,
        sys.argv[1:] if argv is None else argv,
        prog=PROG,
        description="Make the report of a run again from its folder.",
    )
    try:
        report = make_report(args.folder)
        if args.out is not None:
            write_whole(args.out, _text(args, report))
    except (OSError, ValueError) as error:
        fail(PROG, _reason(error))
    try:
        write_all(report, args.folder)
    except OSError as error:
        # Somebody else's folder can still be read.
        print(f"{PROG}: the folder's files stay as they are: {_reason(error)}", file=sys.stderr)
    if args.out is None:
        with reader_may_leave():
            if args.format == "terminal":
                print_report(report, folder=args.folder)
            else:
                sys.stdout.write(_text(args, report))
    return report.exit_code


def _text(args: Args, report: Report) -> str:
    if args.format != "terminal":
        return WRITERS[args.format](View.of(report, args.folder))
    file = io.StringIO()
    print_report(report, Console(file=file, width=WIDTH), args.folder)
    return file.getvalue()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
