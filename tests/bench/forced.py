"""How often each named plan forces its race: ``python tests/bench/forced.py --count 50 -j 2``.

For each plan three kinds of runs of ``repro/programs/two_threads.py``, each cold and in a process
of its own: forced by the plan, the plan's serial control, and the same program with no schedule.
Printed as counts, one line a plan:

    plan             torch    forced  control  natural  seconds

A forced run counts if it followed its plan to the end and found the plan's cause; a control if it
followed its own and was clean; a natural run if the cause was found. Below the line stands what
the others came to, each by its name: a hold that was not reached, an impossible order, a time limit
(timeout), another finding. Exit code 1 where a run was not as it should be.

Another program stands in for ``two_threads.py`` after ``--``. It has to do what the plan is about,
and its control is clean only if nothing else is wrong with it: of the trainer after a warm-up
without gradients, for one, only the other two kinds mean something:

    forced.py --plan stampede --count 20 --kinds forced -- -m dflash_min.train --warmup no_grad

Takes about 5 s a run on two cores with -j 2, so 50 of each kind of all six plans take 75 minutes;
``--kinds forced`` makes those runs alone. A run of the trainer takes 20 s. Ctrl-C ends it and keeps
what was counted; --json is written after each plan.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import usage

from dflash_min.errors import UsageError
from harness import interrupts
from harness.events.ended import read_ended
from harness.schedule.named import NAMED
from harness.schedule.outcome import Outcome
from harness.schedule.plan import Plan, Schedule, serial
from harness.schedule.runner import ProcessRunner
from harness.supervise.interpreter import Interpreter, check_torch, inspect
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.program import read_program

PROGRAM = Path(__file__).resolve().parents[2] / "repro" / "programs" / "two_threads.py"
HEAD = f"{'plan':16} {'torch':14} {'forced':>8} {'control':>8} {'natural':>8} {'seconds':>8}"
KINDS = ("forced", "control", "natural")


@dataclass(frozen=True)
class Race:
    """What a plan forces, and the torch minor versions (first, last) that have the defect."""

    code: str
    since: tuple[int, int]
    until: tuple[int, int]


NEWEST = (99, 0)
RACES = {
    "fx-flag": Race("CR301", (2, 11), (2, 13)),
    "fx-flag-sticky": Race("CR302", (2, 11), (2, 13)),
    "is-compiling": Race("CR304", (2, 13), NEWEST),
    "stampede": Race("CR303", (2, 11), NEWEST),
    "fx-annotation": Race("CR310", (2, 13), NEWEST),
    "fx-patcher": Race("CR308", (2, 11), NEWEST),
}


def body_of(name: str, torch: tuple[int, int]) -> str:
    """What ``two_threads.py`` is to do. Up to 2.12 a compile's own trace is seen as well."""
    return "fx-flag-compile" if name == "fx-flag" and torch < (2, 13) else name


def has_defect(name: str, torch: str) -> bool:
    """Whether this version of torch has what the plan forces."""
    return RACES[name].since <= minor(torch) <= RACES[name].until


def minor(version: str) -> tuple[int, int]:
    """``2.13.0+cpu`` as (2, 13)."""
    major, of, *_ = version.split(".")
    return int(major), int(of)


@dataclass
class Count:
    """The runs of one kind: how many were asked for, and what each came to.

    ``hits`` are those that count; ``others`` are the rest, each by its name.
    """

    asked: int
    hits: int = 0
    others: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def done(self) -> int:
        """How many there were."""
        return self.hits + len(self.others)

    def said(self) -> str:
        """``hits/runs``, of the runs that there were, or a dash where none were asked for."""
        return f"{self.hits}/{self.done}" if self.asked else "-"


@dataclass
class Row:
    """One plan's counts. ``has``: this torch has the defect."""

    plan: str
    code: str
    torch: str
    has: bool
    counts: dict[str, Count]
    seconds: float = 0.0

    def line(self) -> str:
        """The row of the table."""
        cells = " ".join(f"{self.counts[kind].said():>8}" for kind in KINDS)
        return f"{self.plan:16} {self.torch:14} {cells} {self.seconds:8.0f}"

    def details(self) -> list[str]:
        """What the runs came to that did not count, and why."""
        lines = [] if self.has else [f"  this torch does not have {self.code}"]
        for kind, count in self.counts.items():
            if count.done < count.asked:
                lines.append(f"  {kind}: {count.done} of {count.asked} runs were made")
            # That the race does not come by itself is no news.
            others = Counter(what for what in count.others if (kind, what) != ("natural", "clean"))
            if others:
                said = ", ".join(f"{number} {what}" for what, number in others.most_common())
                lines.append(f"  {kind}: {said}")
        notes = [note for count in self.counts.values() for note in count.notes]
        return lines + [f"    {note}" for note in dict.fromkeys(notes)]

    def right(self) -> bool:
        """Whether all that were made are as they should be."""
        forced, control = self.counts["forced"], self.counts["control"]
        wrong = forced.others if self.has else ["found"] * forced.hits
        return not wrong and not control.others

    def to_json(self) -> dict[str, object]:
        """The row as data."""
        counts = {
            kind: {
                "asked": count.asked,
                "runs": count.done,
                "hits": count.hits,
                "others": dict(Counter(count.others)),
                "seconds": [round(seconds, 2) for seconds in count.seconds],
            }
            for kind, count in self.counts.items()
        }
        return {
            "plan": self.plan,
            "code": self.code,
            "torch": self.torch,
            "has_defect": self.has,
            **counts,
            "wall_s": round(self.seconds, 1),
            "notes": [note for count in self.counts.values() for note in count.notes],
        }


def name_of(outcome: Outcome, *, timed_out: bool) -> str:
    """What a run that does not count came to."""
    if timed_out:
        return "timeout"
    if outcome.kind in {"impossible", "not reached"}:
        return outcome.kind
    if not outcome.followed:
        return f"not followed, {' '.join(outcome.codes) or outcome.verdict}"
    return " ".join(outcome.codes) or outcome.verdict


class Bench:
    """Makes the runs of one plan."""

    def __init__(self, name: str, python: Interpreter, out: Path, options) -> None:
        self.row = Row(
            name,
            RACES[name].code,
            python.torch,
            has_defect(name, python.torch),
            {kind: Count(options.count if kind in options.kinds else 0) for kind in KINDS},
        )
        plan = NAMED[name]
        self._schedules: dict[str, Schedule] = {
            "forced": plan,
            "control": serial(plan),
            "natural": Plan(),
        }
        self._out = out
        self._options = options
        body = body_of(name, minor(python.torch))
        words = options.program or (str(PROGRAM), body, options.device)
        self._command = (python.path, *words)
        self.runner = ProcessRunner(out, self._launch)

    def run(self) -> None:
        """Make all runs, the kinds that are asked for in turn.

        Raises:
            KeyboardInterrupt: after the runs that were going on have been ended; what was counted
                is in ``row``.
        """
        began = time.monotonic()
        pool = ThreadPoolExecutor(self._options.jobs)
        order = [kind for _ in range(self._options.count) for kind in self._options.kinds]
        futures: dict[Future[tuple[Outcome, bool]], str] = {}
        try:
            futures = {pool.submit(self._one, kind): kind for kind in order}
            for future in as_completed(futures):
                self._count(futures[future], *future.result())
        finally:
            self.runner.stop()
            pool.shutdown(cancel_futures=True)
            self.row.seconds = time.monotonic() - began

    def _count(self, kind: str, outcome: Outcome, timed_out: bool) -> None:
        count = self.row.counts[kind]
        count.seconds.append(outcome.wall_s)
        if self._hits(kind, outcome):
            count.hits += 1
            return
        count.others.append(name_of(outcome, timed_out=timed_out))
        if kind != "natural" and outcome.headline:
            count.notes.append(f"{kind}: {outcome.headline}")

    def _hits(self, kind: str, outcome: Outcome) -> bool:
        if kind == "control":
            return outcome.kind == "clean" and outcome.followed
        return self.row.code in outcome.codes and (kind == "natural" or outcome.followed)

    def _one(self, kind: str) -> tuple[Outcome, bool]:
        outcome = self.runner.run(self._schedules[kind], 0)
        ended = read_ended(self._out / outcome.folder)
        self.runner.drop(outcome)
        return outcome, ended is not None and ended.deadline_hit

    def _launch(self, schedule: Schedule, folder: Path, slot: int) -> Launch:
        del slot
        asked = schedule.for_child() if schedule != Plan() else None
        return Launch(
            command=self._command,
            folder=folder,
            watch=WatchSettings(schedule=asked),
            timeout_s=self._options.timeout,
            log=folder / "child.log",
        )


def options_of(argv, about=__doc__, count=50, kinds=("forced",)):
    """The command line, here and of ``scripts.py``; ends the command for one that does not fit.

    Args:
        argv: the words, or None for the process's.
        about: the bench's docstring.
        count: runs of each kind if --count is not given.
        kinds: of runs; with several --kinds chooses among them.
    """
    known = sorted(RACES)
    parser = usage.parser(about)
    parser.add_argument(
        *("--plan", "--plans"),
        dest="plans",
        nargs="+",
        action="extend",
        choices=known,
        metavar="PLAN",
        help=f"only these, of {', '.join(known)}",
    )
    parser.add_argument(
        *("--count", "--runs"), type=usage.whole(1, 100_000), default=count, help="runs of each"
    )
    if len(kinds) > 1:
        parser.add_argument(
            "--kinds", nargs="+", choices=kinds, default=kinds, help="only runs of these kinds"
        )
        parser.add_argument(
            "program", nargs="*", help="script.py or -m module, and arguments, after --"
        )
    parser.set_defaults(kinds=kinds, program=[])
    parser.add_argument(
        *("-j", "--jobs"), type=usage.whole(1, 512), default=1, metavar="N", help="runs at a time"
    )
    parser.add_argument("--python", help="whose torch is to be raced (this one's)")
    of_program = "; with -- PROGRAM: cuda leaves it the visible GPUs, cpu hides them"
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help=f"of the tensors (cpu){of_program if len(kinds) > 1 else ''}",
    )
    parser.add_argument(
        "--timeout",
        type=usage.decimal(1, 86_400),
        default=300.0,
        help="seconds that a run may take",
    )
    parser.add_argument("--json", type=usage.writable, help="write the counts to this file as well")
    options = parser.parse_args(argv)
    options.plans = list(dict.fromkeys(options.plans or RACES))
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        python = interpreter_of(options)
    except UsageError as error:
        parser.error(str(error))
    return options, python


def interpreter_of(options) -> Interpreter:
    """The interpreter, once all is there that the runs need; ``options.program`` as it takes it.

    Raises:
        UsageError: naming what is not there.
    """
    module = own = None
    if options.program:
        program = read_program(options.program, options.python)
        options.program, module, own = list(program.words), program.module, program.python
    python = inspect(options.python or own or sys.executable, module)
    check_torch(python, needed=True)
    if options.device == "cuda" and not sees_gpu(python):
        raise UsageError(f"--device cuda: torch in {python.path} sees no GPU")
    return python


def sees_gpu(python: Interpreter) -> bool:
    """Whether torch finds a GPU there; a build without CUDA is not asked."""
    if not python.cuda:
        return False
    asked = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    done = subprocess.run([python.path, "-c", asked], capture_output=True, check=False)
    return done.returncode == 0


def machine(python: Interpreter, options) -> str:
    """Where the runs are made, in one line."""
    return (
        f"torch {python.torch}, python {python.python}, {options.device}, {platform.machine()}, "
        f"{os.cpu_count()} cores, {options.jobs} at a time, cold caches"
    )


def main(argv=None) -> int:
    """Make the runs and print a line for each plan; returns the exit code."""
    interrupts.be_usual()
    options, python = options_of(argv, kinds=KINDS)
    print(f"{machine(python, options)}\n{HEAD}", flush=True)
    rows: list[Row] = []
    code = 0
    try:
        with tempfile.TemporaryDirectory(prefix="forced-") as out:
            for name in options.plans:
                bench = Bench(name, python, Path(out), options)
                rows.append(bench.row)
                try:
                    bench.run()
                finally:
                    print("\n".join([bench.row.line(), *bench.row.details()]), flush=True)
                    write(options.json, python, rows)
    except KeyboardInterrupt:
        print("interrupted: the counts are of the runs that had ended", file=sys.stderr)
        code = 130
    return code or int(not all(row.right() for row in rows))


def write(path, python: Interpreter, rows: list[Row]) -> None:
    """Write the counts so far."""
    if path is not None:
        about = {"torch": python.torch, "python": python.python, "cores": os.cpu_count()}
        content = {**about, "plans": [row.to_json() for row in rows]}
        path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
