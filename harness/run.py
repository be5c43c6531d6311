"""The built-in trainer under the watch: ``python -m harness.run --threads 3 --warmup grad``."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from dflash_min.cli import parse, to_argv
from dflash_min.config import TrainConfig
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.child.gpus import gpu_is_visible
from harness.child.privacy import mask_argv
from harness.command import command
from harness.events.run import Run
from harness.flow import Job, run_job, settings_of, tell_of_traces
from harness.schedule.explore import Explored, explore
from harness.schedule.plan import Schedule
from harness.schedule.reductions import trainer_reductions
from harness.schedule.runner import ProcessRunner
from harness.schedule.scheduled import Scheduled, token_for, versions_of
from harness.schedule.script import Parts
from harness.spec import RunSpec, arguments_of_file, resolved_anywhere, spec_file
from harness.supervise.interpreter import check_torch, inspect
from harness.supervise.launch import Launch

PROG = "harness.run"
_TRAINER = (sys.executable, "-m", "dflash_min.train")


@command(PROG)
def main(argv: list[str]) -> int:
    """Train, diagnose and report; returns the exit code."""
    _check_no_program(argv)
    spec = _spec(argv)
    spec.watch.check([cause.EXPLANATION.code for cause in CAUSES])
    spec.schedule.check()
    threads = spec.drafter_threads()
    interpreter = inspect(sys.executable)
    check_torch(interpreter, needed=True)
    on_gpu = gpu_is_visible(interpreter.cuda)
    chosen = resolved_anywhere(spec.train, on_gpu=on_gpu)
    scheduled = Scheduled(
        "run",
        tuple(spec.trainer_arguments()),
        spec.schedule,
        versions_of(interpreter),
        kept_cache=spec.watch.keep_cache,
        backend=chosen.backend,
        dynamic=chosen.compile_dynamic,
    )
    scheduled.check_versions(PROG)
    tell_of_traces(PROG, spec.watch)
    if spec.schedule.searches:
        return explore(_explored(spec, scheduled, on_gpu=on_gpu))
    replay = shlex.join(["python", "-m", PROG, *mask_argv(argv)])
    return run_job(
        Job(
            prog=PROG,
            slug=f"run-{spec.train.warmup}",
            command=(*_TRAINER, *spec.trainer_arguments()),
            options=spec.watch,
            expected_threads=threads,
            replay=scheduled.replay(PROG) or replay,
            captured=True,
            verbose=spec.verbose,
            scheduled=scheduled,
        )
    )


def _check_no_program(argv: list[str]) -> None:
    """Refuse a program of the user's, which the other command is for."""
    at = argv.index("--") + 1 if "--" in argv else 0
    words = argv[at:]
    if at or (words and not words[0].startswith("-")):
        hint = f"python -m harness.watch -- {shlex.join(words)}".strip()
        raise UsageError(f"this command runs the built-in trainer; any other program: {hint}")


def _spec(argv: list[str]) -> RunSpec:
    """What is asked for; flags outrank a token's arguments, and those a file's."""
    file = spec_file(argv)
    given = [*(arguments_of_file(file) if file else ()), *argv]
    spec = parse(RunSpec, given, prog=PROG, description=__doc__ or "")
    token = token_for(spec.schedule, "run")
    if token is None:
        return spec
    cache = ["--keep-cache"] if token.cache == "kept" else []
    return parse(RunSpec, [*token.argv, *cache, *given], prog=PROG, description=__doc__ or "")


def _explored(spec: RunSpec, scheduled: Scheduled, *, on_gpu: bool) -> Explored[TrainConfig]:
    def runner_for(train: TrainConfig, folder: Path) -> ProcessRunner:
        def launch(schedule: Schedule, folder: Path, slot: int) -> Launch:
            del slot
            return Launch(
                command=(*_TRAINER, *to_argv(train)),
                folder=folder,
                watch=settings_of(spec.watch, schedule),
                timeout_s=spec.watch.timeout,
                log=folder / "child.log",
            )

        def run(schedule: Schedule) -> Run:
            replay = scheduled.with_argv(to_argv(train)).replay_of(PROG, schedule)
            return Run(prog=PROG, replay=replay)

        return ProcessRunner(folder, launch, run)

    def parts_of(train: TrainConfig) -> Parts:
        chosen = resolved_anywhere(train, on_gpu=on_gpu)
        return replace(scheduled.parts, backend=chosen.backend, dynamic=chosen.compile_dynamic)

    chosen = resolved_anywhere(spec.train, on_gpu=on_gpu)
    return Explored(
        prog=PROG,
        slug=f"run-{spec.train.warmup}",
        out=spec.watch.out,
        options=spec.schedule,
        spec=spec.train,
        runner_for=runner_for,
        token_of=lambda train, plan: scheduled.with_argv(to_argv(train)).token(plan),
        reductions=trainer_reductions(chosen.seq_lens, chosen.backend),
        parts_of=parts_of,
        interpreter=sys.executable,
        json=spec.watch.json,
    )


if __name__ == "__main__":
    sys.exit(main())
