"""Any program under the watch: ``python -m harness.watch [options] -- script.py args ...``."""

import math
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_origin, get_type_hints

from dflash_min.cli import parse
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.child.privacy import mask_argv
from harness.command import command
from harness.events.run import Run
from harness.flow import Job, run_job, settings_of, tell_of_traces
from harness.schedule.explore import Explored, explore
from harness.schedule.options import ScheduleOptions
from harness.schedule.plan import Schedule
from harness.schedule.runner import ProcessRunner
from harness.schedule.scheduled import Scheduled, has_masked, token_for, versions_of
from harness.spec import WatchOptions, WatchSpec
from harness.supervise.interpreter import check_torch, inspect
from harness.supervise.launch import Launch
from harness.supervise.program import read_program

PROG = "harness.watch"
_HELP = (
    f"{__doc__} Also: -- -m module args ..., after any of Python's own options; -- torchrun args "
    "... and any other command that is a Python script; -- python script.py args ..."
)


@command(PROG)
def main(argv: list[str]) -> int:
    """Run the program, diagnose and report; returns the exit code."""
    split = argv.index("--") if "--" in argv else len(argv)
    _check_separated(argv[:split])
    spec = parse(WatchSpec, argv[:split], prog=PROG, description=_HELP)
    token = token_for(spec.schedule, "watch")
    if token is not None and token.cache == "kept":
        spec = replace(spec, watch=replace(spec.watch, keep_cache=True))
    spec.watch.check([cause.EXPLANATION.code for cause in CAUSES])
    spec.schedule.check()
    program = read_program(_words(spec, argv[split + 1 :]), spec.python)
    named = spec.python or program.python
    python = named or sys.executable
    interpreter = inspect(python, program.module)
    check_torch(interpreter, needed=False)
    scheduled = Scheduled(
        "watch",
        program.words,
        spec.schedule,
        versions_of(interpreter),
        kept_cache=spec.watch.keep_cache,
    )
    scheduled.check_versions(PROG)
    tell_of_traces(PROG, spec.watch)
    if spec.schedule.searches:
        return explore(_explored(spec, (python, *program.words), program.slug, scheduled))
    replay = shlex.join(["python", "-m", PROG, *mask_argv(argv)])
    return run_job(
        Job(
            prog=PROG,
            slug=f"watch-{program.slug}",
            command=(python, *program.words),
            options=spec.watch,
            replay=scheduled.replay(PROG, ["--python", named] if named else []) or replay,
            passthrough=spec.passthrough,
            scheduled=scheduled,
        )
    )


def _words(spec: WatchSpec, words: list[str]) -> list[str]:
    """The program's command line: what was given, or else the token's."""
    token = spec.schedule.token()
    if token is None or words:
        return words
    if has_masked(token):
        raise UsageError("the token's command line held a secret: give the program after --")
    return list(token.argv)


def _explored(
    spec: WatchSpec, program: tuple[str, ...], slug: str, scheduled: Scheduled
) -> Explored[tuple[str, ...]]:
    def runner_for(program: tuple[str, ...], folder: Path) -> ProcessRunner:
        def launch(schedule: Schedule, folder: Path, slot: int) -> Launch:
            del slot
            return Launch(
                command=program,
                folder=folder,
                watch=settings_of(spec.watch, schedule),
                timeout_s=spec.watch.timeout,
                log=folder / "child.log",
            )

        def run(schedule: Schedule) -> Run:
            return Run(prog=PROG, replay=scheduled.replay_of(PROG, schedule))

        return ProcessRunner(folder, launch, run)

    return Explored(
        prog=PROG,
        slug=slug,
        out=spec.watch.out,
        options=spec.schedule,
        spec=program,
        runner_for=runner_for,
        token_of=lambda _, schedule: scheduled.token(schedule),
        parts_of=lambda _: scheduled.parts,
        interpreter=program[0],
        json=spec.watch.json,
    )


def _check_separated(options: list[str]) -> None:
    """Refuse a program that stands among our own options, where its arguments would be ours."""
    takes = _values_taken()
    open_values: float = 0
    for at, word in enumerate(options):
        if word.startswith("-") and word not in {"-m", "-c"}:
            flag, equals, _ = word.partition("=")
            open_values = 0 if equals else takes.get(flag, 1)
        elif word in {"-m", "-c"} or open_values < 1 or _is_script(word, open_values):
            raise UsageError(f"put -- before the program: -- {shlex.join(options[at:])}")
        else:
            open_values -= 1


def _values_taken() -> dict[str, float]:
    """How many words may follow each of our flags: none, one, or any number."""
    taken: dict[str, float] = {}
    for group in (WatchSpec, WatchOptions, ScheduleOptions):
        for name, kind in get_type_hints(group).items():
            flag = f"--{name.replace('_', '-')}"
            taken[flag] = math.inf if get_origin(kind) is tuple else int(kind is not bool)
            if kind is bool:
                taken[flag.replace("--", "--no-", 1)] = 0
    return taken


def _is_script(word: str, open_values: float) -> bool:
    """Whether a word that may be one of a list's is a script all the same."""
    return math.isinf(open_values) and word.endswith(".py")


if __name__ == "__main__":
    sys.exit(main())
