"""A watched run from start to exit code, shared by the commands that start programs."""

import contextlib
import datetime as dt
import functools
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dflash_min.cli import fail, say
from dflash_min.errors import UsageError
from harness import __version__
from harness.child.privacy import mask
from harness.diagnosis.report import Report
from harness.diagnosis.shown import report_to_show
from harness.events.ended import Ended
from harness.events.files import CHILD_LOG, EVENTS, HARNESS_FAILURE, write_whole
from harness.events.run import Run, write_run
from harness.exits import ExitCode
from harness.expect import decide_exit
from harness.live import Live
from harness.render import WRITERS, write_all
from harness.render.output import reader_may_leave
from harness.render.terminal import print_report
from harness.render.view import View
from harness.schedule.plan import Plan, Schedule
from harness.schedule.scheduled import Scheduled
from harness.spec import WatchOptions
from harness.supervise.folder import make_run_folder, missing_parents, remove_run_folder
from harness.supervise.launch import Launch, WatchSettings, traces_elsewhere
from harness.supervise.process import supervise
from harness.supervise.progress import Counters, Progress
from harness.supervise.signals import undisturbed
from harness.timeline.recording import Recording


@dataclass(frozen=True)
class Job:
    """A program to watch and what to do with what is found.

    Attributes:
        prog: the command's name, for messages.
        slug: what runs, for the run folder's name.
        command: the program's command line.
        options: the user's options.
        expected_threads: so many threads must call compiled code and backward for the verdict to
            count; None: any number.
        replay: the command that does all this again.
        captured: keep the program's output in the run folder instead of showing it, and take a
            usage error of the program for one of ours.
        verbose: show captured output as well.
        passthrough: end with the program's own exit code; the report goes to stderr, so that
            stdout is the program's alone.
        scheduled: how to run it under a schedule; None: its threads run as they like.
    """

    prog: str
    slug: str
    command: tuple[str, ...]
    options: WatchOptions
    expected_threads: int | None = None
    replay: str = ""
    captured: bool = False
    verbose: bool = False
    passthrough: bool = False
    scheduled: Scheduled | None = None


def run_job(job: Job) -> int:
    """Watch, diagnose, write and print the report; return the exit code.

    Raises:
        UsageError: nothing was started, and nothing is left behind.
        SystemExit: with code 2, after one line on stderr, where the program itself refused its
            arguments.
    """
    made = missing_parents(job.options.out)
    with contextlib.ExitStack() as rest:
        folder = _prepare(job, made)
        live = Live(job.prog, folder, stop_on=job.options.stop_on, alert=job.options.alert)
        ended = _run(job, folder, made, live, rest)
        if job.captured:
            refused = refusal(ended, folder)
            if refused:
                remove_run_folder(folder, made)
                fail(job.prog, refused)
        return _finish(job, folder, ended, live)


def _run(
    job: Job, folder: Path, made: Sequence[Path], live: Live, rest: contextlib.ExitStack
) -> Ended:
    """Run the program to its end; ``rest`` keeps signals from what comes then."""
    log = folder / CHILD_LOG if job.captured else None
    asked = None if job.scheduled is None else job.scheduled.options.asked()
    launch = Launch(
        command=job.command,
        folder=folder,
        watch=settings_of(job.options, asked),
        timeout_s=job.options.timeout,
        log=log,
    )
    shown = log if job.verbose else None
    try:
        with Progress(job.prog, folder, log=shown, quiet=not job.captured) as progress:

            def tick() -> str | None:
                progress.tick()
                return live.tick()

            ended = supervise(launch, tick)
            rest.enter_context(undisturbed())
    except BaseException:
        if not (folder / EVENTS).exists():
            remove_run_folder(folder, made)
        raise
    return ended


def _prepare(job: Job, made: Sequence[Path]) -> Path:
    """Make the run folder and write down what is asked for, while the parent still lives."""
    folder = make_run_folder(job.options.out, job.slug)
    run = Run(
        harness=__version__,
        prog=job.prog,
        replay=job.replay,
        expected_threads=job.expected_threads,
        started=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        no_source=not job.options.source,
    )
    try:
        write_run(folder, run)
    except OSError as error:
        remove_run_folder(folder, made)
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
    return folder


def tell_of_traces(prog: str, options: WatchOptions) -> None:
    """Say where torch's logs go if not to the run folder."""
    folder = traces_elsewhere()
    if options.torch_trace and folder:
        say(prog, f"TORCH_TRACE is set: torch's logs go to {folder}, not to the run folder")


def settings_of(options: WatchOptions, schedule: Schedule | None) -> WatchSettings:
    """The watch's settings for a program that runs under ``schedule``; None: as it likes."""
    return WatchSettings(
        compile_detail=options.compile_detail,
        disabled_probes=options.no_probe,
        max_events_mb=options.max_events_mb,
        memory_cap=None if options.memory_cap is None else round(options.memory_cap * 2**30),
        keep_cache=options.keep_cache,
        torch_trace=options.torch_trace,
        schedule=None if schedule is None or schedule == Plan() else schedule.for_child(),
    )


def refusal(ended: Ended, folder: Path) -> str | None:
    """The program's one line about its arguments, if that is all it did."""
    if ended.exit_code != ExitCode.USAGE:
        return None
    counters = Counters(folder)
    counters.update()
    if counters.at_work:
        return None
    lines = ended.stderr_tail.strip().splitlines()
    match = re.fullmatch(r"\S+: error: (.+)", lines[-1]) if lines else None
    return match[1] if match else None


def _finish(job: Job, folder: Path, ended: Ended, live: Live) -> int:
    try:
        recording = Recording(folder)
        recording.ended = ended  # a full disk may have kept it from being written
        report = report_to_show(recording, no_source=not job.options.source)
        written = _write(job, report, folder)
        _print(job, report, folder, written=written)
        live.finish(report)
        _script(job, report, recording, folder)
    except KeyboardInterrupt:
        say(job.prog, f"interrupted; the recording is in {folder}")
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever it is, the recording must not be lost
        return _failed(job, folder, error)
    if job.passthrough:
        return passed_through(ended)
    expect, expect_only = job.options.expect, job.options.expect_only
    if job.scheduled is not None:
        decided = job.scheduled.decide(job.prog, recording, report, expect, expect_only)
        if decided is not None:
            return decided
    return decide_exit(report, expect, expect_only)


def _script(job: Job, report: Report, recording: Recording, folder: Path) -> None:
    if job.scheduled is None:
        return
    said = job.scheduled.script(report, recording, folder, job.command[0])
    if said is not None:
        say(job.prog, said)


def _write(job: Job, report: Report, folder: Path) -> bool:
    """Write the report's files; return whether that could be done."""
    try:
        write_all(report, folder)
    except OSError as error:  # a full disk: it can still be read on the terminal
        say(job.prog, f"the report cannot be written to {folder}: {error.strerror or error}")
        return False
    return True


def _print(job: Job, report: Report, folder: Path, *, written: bool) -> None:
    # What reads the program's output where the bare program stood must not read the report.
    out = sys.stderr if job.passthrough else sys.stdout
    # The report is in the folder all the same, if that could be written.
    with reader_may_leave(kept=functools.partial(say, job.prog), out=out):
        if job.options.json:
            out.write(WRITERS["json"](View.of(report, folder)))
        else:
            inventory = job.options.inventory
            print_report(
                report, Console(file=out), folder=folder, written=written, caches=inventory
            )


def _failed(job: Job, folder: Path, error: Exception) -> int:
    with contextlib.suppress(OSError):
        write_whole(folder / HARNESS_FAILURE, mask(traceback.format_exc()))
    say(
        job.prog,
        f"the report failed ({type(error).__name__}: {error}); nothing is lost: the recording "
        f"is in {folder}",
    )
    return ExitCode.FAILED


def passed_through(ended: Ended) -> int:
    """Return the exit code that a shell gives the program: its own, or 128 and the signal."""
    if ended.signal is not None:
        return 128 + ended.signal
    return ended.exit_code or 0
