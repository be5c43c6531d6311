"""A search as a command: runs it, makes what it found smaller, and says what came of it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from dflash_min.cli import say
from harness.exits import ExitCode
from harness.schedule.arrivals import arrivals
from harness.schedule.bar import Bar
from harness.schedule.minimise import Case, Minimised, minimise, write_minimised
from harness.schedule.options import ScheduleOptions
from harness.schedule.outcome import Outcome, Runner
from harness.schedule.plan import Plan, Schedule, parse_plan, write_plan
from harness.schedule.reductions import Reduction, Spec
from harness.schedule.results import RESULTS, Reported, SearchResult
from harness.schedule.runner import ProcessRunner
from harness.schedule.search import Search, SearchOptions
from harness.schedule.strategies import Strategy
from harness.schedule.strategies.chaos import Chaos
from harness.schedule.strategies.enumerate import Enumerate
from harness.schedule.strategies.pct import Pct
from harness.supervise.folder import make_run_folder
from harness.timeline.recording import Recording

PLAN, SMALLEST, MINIMISED = "found-{}.toml", "found-{}-smallest.toml", "found-{}-minimised.json"


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
    """

    prog: str
    slug: str
    out: Path
    options: ScheduleOptions
    spec: Spec
    runner_for: Callable[[Spec, Path], ProcessRunner]
    token_of: Callable[[Spec, Schedule], str]
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
    strategy = _strategy(job, folder)
    say(job.prog, strategy.describe())
    options = SearchOptions(bound=job.options.explore, jobs=job.options.jobs)
    with Bar(job.prog, job.options.explore) as bar:
        result = Search(
            strategy,
            job.runner_for(job.spec, folder),
            options,
            path=folder / RESULTS,
            on_change=bar.show,
            on_find=bar.found,
            token_of=lambda schedule: job.token_of(job.spec, schedule),
        ).run()
    lines = [_said(result)]
    for number, reported in enumerate(result.reported, 1):
        lines += [_found(job, reported), *_smaller(job, folder, number, reported, result)]
    if job.json:
        sys.stdout.write((folder / RESULTS).read_text(encoding="utf-8"))
    else:
        print("\n".join(lines))
    return _exit_code(result)


def _strategy(job: Explored[Spec], folder: Path) -> Strategy:
    """The strategy; for those that need it, made from one run with no schedule."""
    options = job.options
    if options.strategy == "chaos":
        return Chaos(options.search_seed)
    runner = job.runner_for(job.spec, folder)
    outcome = runner.run(Plan(), 0)
    found = arrivals(Recording(folder / outcome.folder))
    say(job.prog, f"with no schedule: {outcome.headline or outcome.verdict}")
    if options.strategy == "pct":
        return Pct.of(found, seed=options.search_seed)
    return Enumerate(found, bound=options.explore)


def _said(result: SearchResult) -> str:
    return (
        f"{len(result.tried)} schedules: {result.said}; {result.wall_s:.0f} s, "
        f"{result.cpu_s:.0f} CPU s"
    )


def _found(job: Explored[Spec], reported: Reported) -> str:
    return (
        f"{' '.join(reported.roots)}  {reported.headline}\n"
        f"  schedule  {reported.schedule.text}\n"
        f"  replayed  {reported.said}; first found by run {reported.number}, after "
        f"{reported.after_cpu_s:.0f} CPU s\n"
        f"  again     python -m {job.prog} --schedule-token {reported.token}"
    )


def _smaller(
    job: Explored[Spec], folder: Path, number: int, reported: Reported, result: SearchResult
) -> list[str]:
    """Write the plan of a find down, and the smallest one that shows the same if asked for."""
    if not reported.schedule.holds:
        return []
    plan = parse_plan(reported.schedule.holds, note=reported.headline)
    write_plan(folder / PLAN.format(number), plan)
    if not job.options.minimise or result.interrupted:
        return []
    wanted = Outcome(kind="found", verdict="found", roots=reported.roots)
    runners: list[ProcessRunner] = []

    def runner_for(spec: Spec) -> Runner:
        runners.append(job.runner_for(spec, folder))
        return runners[-1]

    small = minimise(Case(plan, job.spec), wanted, runner_for, job.reductions)
    write_minimised(folder / MINIMISED.format(number), small)
    if small.smallest.plan.holds:
        write_plan(folder / SMALLEST.format(number), small.smallest.plan)
    return [_made_smaller(job, small)]


def _made_smaller(job: Explored[Spec], small: Minimised[Spec]) -> str:
    token = job.token_of(small.smallest.spec, small.smallest.plan)
    return (
        f"  smallest  {small.smallest.plan} ({small.state} after {small.runs} runs)\n"
        f"  again     python -m {job.prog} --schedule-token {token}"
    )


def _exit_code(result: SearchResult) -> ExitCode:
    if result.interrupted:
        return ExitCode.INTERRUPTED
    if result.reported or result.counts["found"]:
        return ExitCode.FOUND
    # A schedule that could not be followed says nothing of the program, but one that was does.
    done = result.complete and result.counts["clean"] and not result.counts["failed"]
    return ExitCode.CLEAN if done else ExitCode.INCOMPLETE
