"""A watched run from start to exit code, shared by the commands that start programs."""

import contextlib
import os
import re
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dflash_min.cli import fail
from harness.diagnosis.build import Expectations, diagnose
from harness.diagnosis.report import Report
from harness.exits import ExitCode
from harness.render import file_name, write_all
from harness.render.terminal import print_report
from harness.spec import WatchOptions
from harness.supervise.ended import Ended
from harness.supervise.expect import decide_exit
from harness.supervise.folder import CHILD_LOG, EVENTS, make_run_folder, remove_run_folder
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.process import supervise
from harness.supervise.progress import Progress

FAILURE = "harness-failure.txt"
# Points that say that the program got to work; a usage error comes before.
_AT_WORK = re.compile(
    rb'^\{"point": "(?:wrapper|dynamo_compile|guard_miss|step|phase)"', re.MULTILINE
)


@dataclass(frozen=True)
class Job:
    """A program to watch and what to do with what is found.

    Attributes:
        prog: the command's name, for messages.
        slug: what runs, for the run folder's name.
        command: the program's command line.
        options: the user's options.
        expectations: what the program must have done for its verdict to count.
        replay: the command that does all this again.
        captured: keep the program's output in the run folder instead of showing it, and take a
            usage error of the program for one of ours.
        verbose: show captured output as well.
        passthrough: end with the program's own exit code.
    """

    prog: str
    slug: str
    command: tuple[str, ...]
    options: WatchOptions
    expectations: Expectations = field(default_factory=Expectations)
    replay: str = ""
    captured: bool = False
    verbose: bool = False
    passthrough: bool = False


def run_job(job: Job) -> int:
    """Watch, diagnose, write and print the report; return the exit code.

    Raises:
        UsageError: nothing was started, and nothing is left behind.
        SystemExit: with code 2, after one line on stderr, where the program itself refused its
            arguments.
    """
    folder = make_run_folder(job.options.out, job.slug)
    log = folder / CHILD_LOG if job.captured else None
    launch = Launch(
        command=job.command,
        folder=folder,
        watch=_settings(job.options),
        timeout_s=job.options.timeout,
        log=log,
    )
    shown = log if job.verbose else None
    with Progress(job.prog, folder, log=shown, quiet=not job.captured) as progress:
        try:
            ended = supervise(launch, progress.tick)
        except BaseException:
            if not (folder / EVENTS).exists():
                remove_run_folder(folder)
            raise
    if job.captured:
        refusal = _refusal(ended, folder)
        if refusal:
            remove_run_folder(folder)
            fail(job.prog, refusal)
    return _finish(job, folder, ended)


def _settings(options: WatchOptions) -> WatchSettings:
    return WatchSettings(
        compile_detail=options.compile_detail,
        disabled_probes=options.no_probe,
        max_events_mb=options.max_events_mb,
        keep_cache=options.keep_cache,
    )


def _refusal(ended: Ended, folder: Path) -> str | None:
    """The program's one line about its arguments, if that is all it did."""
    if ended.exit_code != ExitCode.USAGE:
        return None
    with contextlib.suppress(OSError):
        if _AT_WORK.search((folder / EVENTS).read_bytes()):
            return None
    lines = ended.stderr_tail.strip().splitlines()
    match = re.fullmatch(r"\S+: error: (.+)", lines[-1]) if lines else None
    return match[1] if match else None


def _finish(job: Job, folder: Path, ended: Ended) -> int:
    try:
        report = _report(job, folder, ended)
        write_all(report, folder)
        _print(job, report, folder)
    except KeyboardInterrupt:
        _say(job, f"interrupted; the recording is in {folder}")
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever it is, the recording must not be lost
        return _failed(job, folder, error)
    if job.passthrough:
        return passed_through(ended)
    return decide_exit(report, job.options.expect, job.options.expect_only)


def _report(job: Job, folder: Path, ended: Ended) -> Report:
    report = diagnose(folder, job.expectations)
    report = msgspec.structs.replace(report, ended=ended, replay=report.replay or job.replay)
    if report.verdict != "failed":
        return report
    why = ended.child_failure.strip().splitlines()
    headline = "The program was not watched: " + (
        why[-1] if why else "its interpreter did not load the watch (PYTHONPATH or sitecustomize)"
    )
    return msgspec.structs.replace(report, headline=headline)


def _print(job: Job, report: Report, folder: Path) -> None:
    try:
        if job.options.json:
            sys.stdout.write((folder / file_name("json")).read_text(encoding="utf-8"))
        else:
            print_report(report, folder=folder)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich makes the latter of the former
        # The reader has gone, such as head(1); the report is in the folder all the same. Python
        # flushes once more at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(job: Job, folder: Path, error: Exception) -> int:
    with contextlib.suppress(OSError):
        (folder / FAILURE).write_text(traceback.format_exc(), encoding="utf-8")
    _say(
        job,
        f"the report failed ({type(error).__name__}: {error}); nothing is lost: the recording "
        f"is in {folder}",
    )
    return ExitCode.FAILED


def _say(job: Job, message: str) -> None:
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    print(f"{job.prog}: {line}", file=sys.stderr)


def passed_through(ended: Ended) -> int:
    """Return the exit code that a shell gives the program: its own, or 128 and the signal."""
    if ended.signal is not None:
        return 128 + ended.signal
    return ended.exit_code or 0
