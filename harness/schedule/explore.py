"""A search as a command: runs it, makes what it found smaller, and says what came of it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from dflash_min.cli import say
from harness.diagnosis.build import diagnose
from harness.exits import ExitCode
from harness.phrases import count
from harness.render.output import reader_may_leave
from harness.schedule.bar import Bar, Shrinking
from harness.schedule.emit import SCRIPT, Forced, say_script
from harness.schedule.minimise import Case, Minimised, minimise, write_minimised
from harness.schedule.options import ScheduleOptions
from harness.schedule.outcome import Outcome, Runner
from harness.schedule.plan import Schedule, parse_plan, write_plan
from harness.schedule.reductions import Reduction, Spec
from harness.schedule.results import RESULTS, Reported, SearchResult
from harness.schedule.runner import ProcessRunner
from harness.schedule.script import Parts
from harness.schedule.search import Search, SearchOptions
from harness.schedule.strategies.make import make_strategy
from harness.supervise.folder import make_run_folder
from harness.timeline.recording import Recording

PLAN, SMALLEST, MINIMISED = "found-{}.toml", "found-{}-smallest.toml", "found-{}-minimised.json"
OTHER_SCRIPT = "repro-{}.py"


@dataclass(frozen=True)
class Explored(Generic[Spec]):
    """A program to be searched.

    Attributes:
        prog: the command's name, for messages.
        slug: what runs, for the folder's name.
        out: where the search's folder goes.
        options: the flags.
        spec: the program.
        runner_for: runs a program's schedules in a folder.
        token_of: the token of a schedule of a program.
        reductions: ways to make the program smaller.
        json: print the result as JSON.
        parts_of: what a script of a program's race is filled with.
        interpreter: runs those scripts.
    """

    prog: str
    slug: str
    out: Path
    options: ScheduleOptions
    spec: Spec
    runner_for: Callable[[Spec, Path], ProcessRunner]
    token_of: Callable[[Spec, Schedule], str]
    parts_of: Callable[[Spec], Parts]
    interpreter: str
    reductions: Sequence[Reduction[Spec]] = ()
    json: bool = False


def explore(job: Explored[Spec]) -> int:
    """Search, print what was found and return the exit code.

    Everything is kept in one folder: ``search.json``, the run folders of what was found, and for
    each find its plan, and with ``--minimise`` the smallest plan beside it.

    Raises:
        UsageError: the program cannot be started.
    """
    folder = make_run_folder(job.out, f"explore-{job.slug}")
    say(job.prog, f"searching in {folder}")
    runner = job.runner_for(job.spec, folder)
    strategy = make_strategy(job.options, runner, folder, lambda text: say(job.prog, text))
    say(job.prog, strategy.describe())
    bound = job.options.explore or 1
    given = not job.options.explore
    options = SearchOptions(bound=bound, jobs=job.options.jobs, as_given=given)
    with Bar(job.prog, bound) as bar:
        result = Search(
            strategy,
            runner,
            options,
            path=folder / RESULTS,
            on_change=bar.show,
            on_find=bar.found,
            token_of=lambda schedule: job.token_of(job.spec, schedule),
        ).run()
    lines = [_said(result), *_failures(result, folder)]
    for number, reported in enumerate(result.reported, 1):
        lines += [_found(job, reported), *_made_of(job, folder, number, reported, result)]
    with reader_may_leave(kept=lambda line: say(job.prog, line)):
        if job.json:
            sys.stdout.write((folder / RESULTS).read_text(encoding="utf-8"))
        else:
            print("\n".join(lines))
    return _exit_code(result)


def _said(result: SearchResult) -> str:
    return (
        f"{len(result.tried)} schedules: {result.said}; {result.wall_s:.0f} s, "
        f"{result.cpu_s:.0f} CPU s"
    )


def _failures(result: SearchResult, folder: Path) -> list[str]:
    """In which runs the harness itself failed, and where their recordings are."""
    said = [
        f"run {tried.number}, {tried.schedule.text}: the harness failed ({tried.headline})"
        + (f"; the recording is in {folder / tried.folder}" if tried.folder else "")
        for tried in result.tried
        if tried.kind == "failed"
    ]
    if result.failed_replays:
        said.append(f"the harness failed in {count(result.failed_replays, 'replay')} in {folder}")
    return said


def _found(job: Explored[Spec], reported: Reported) -> str:
    return (
        f"{' '.join(reported.roots)}  {reported.headline}\n"
        f"  schedule  {reported.schedule.text}\n"
        f"  replayed  {reported.said}; first found by run {reported.number}, after "
        f"{reported.after_cpu_s:.0f} CPU s\n"
        f"  again     python -m {job.prog} --schedule-token {reported.token}"
    )


def _made_of(
    job: Explored[Spec], folder: Path, number: int, reported: Reported, result: SearchResult
) -> list[str]:
    """Write down the plan of a find, and, if asked for, the smallest one and a script of it."""
    if not reported.schedule.holds:
        none = f"  no {SCRIPT}: only a schedule of holds says what to force"
        return [none] if job.options.emit_script else []
    plan = parse_plan(reported.schedule.holds, note=reported.headline)
    write_plan(folder / PLAN.format(number), plan)
    case, lines = Case(plan, job.spec), list[str]()
    if job.options.minimise and not result.interrupted:
        small = _smaller(job, folder, number, case, reported)
        case, lines = small.smallest, [_made_smaller(job, small)]
    if job.options.emit_script and not result.interrupted:
        lines.append(f"  script    {_script(job, folder, number, case, reported)}")
    return lines


def _smaller(
    job: Explored[Spec], folder: Path, number: int, case: Case[Spec], reported: Reported
) -> Minimised[Spec]:
    """Write down the smallest plan that shows the same."""
    wanted = Outcome(kind="found", verdict="found", roots=reported.roots)

    def runner_for(spec: Spec) -> Runner:
        return job.runner_for(spec, folder)

    with Shrinking(job.prog) as shown:
        small = minimise(case, wanted, runner_for, job.reductions, on_attempt=shown.show)
    write_minimised(folder / MINIMISED.format(number), small)
    if small.smallest.plan.holds:
        write_plan(folder / SMALLEST.format(number), small.smallest.plan)
    return small


def _script(
    job: Explored[Spec], folder: Path, number: int, case: Case[Spec], reported: Reported
) -> str:
    """Write the script of the smallest case, with what the first run of it recorded."""
    recording = Recording(folder / reported.folder)
    path = folder / (SCRIPT if number == 1 else OTHER_SCRIPT.format(number))
    forced = Forced(diagnose(recording), recording, case.plan, job.parts_of(case.spec))
    return say_script(path, forced, job.interpreter)


def _made_smaller(job: Explored[Spec], small: Minimised[Spec]) -> str:
    token = job.token_of(small.smallest.spec, small.smallest.plan)
    free = f"\n  unforced  {small.free} of {small.free} runs show it too" if small.free else ""
    return (
        f"  smallest  {small.smallest.plan} ({small.state} after {small.runs} runs)\n"
        f"  again     python -m {job.prog} --schedule-token {token}{free}"
    )


def _exit_code(result: SearchResult) -> ExitCode:
    if result.interrupted:
        return ExitCode.INTERRUPTED
    if result.counts["failed"] or result.failed_replays:
        return ExitCode.FAILED
    if result.reported or result.counts["found"]:
        return ExitCode.FOUND
    # A schedule that could not be followed says nothing of the program, but one that was does.
    done = result.complete and result.counts["clean"] and not result.counts["incomplete"]
    return ExitCode.CLEAN if done else ExitCode.INCOMPLETE
