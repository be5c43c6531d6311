"""How often the script of each named plan reproduces: ``python tests/bench/scripts.py --count 20``.

For each plan one forced run of ``repro/programs/two_threads.py``; the script that ``--emit-script``
makes of it is written once and run --count times, each time in a clean environment (``python -I``,
an empty folder, caches of its own, no variable that sets anything of Python's or torch's). Printed
as counts, one line a plan:

    plan             torch    code    script

Exit code 1 where a script of a defect that this torch has did not reproduce each time, or one of
another defect ever did.

Takes about 4 s a run on two cores with -j 1 and 10 s a plan, so 20 runs of all six plans take
9 minutes. Ctrl-C ends it and keeps what was counted; --json is written after each plan.
"""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

import forced

from harness import interrupts
from harness.diagnosis.build import diagnose
from harness.schedule.emit import SCRIPT, Forced, run_script, write_script
from harness.schedule.named import NAMED
from harness.schedule.script import NoScript, Parts
from harness.supervise.interpreter import Interpreter
from harness.timeline.recording import Recording

HEAD = f"{'plan':16} {'torch':14} {'code':6} {'script':>10} {'seconds':>8}"


@dataclass
class Shown:
    """What one plan's script came to. ``has``: this torch has the plan's defect."""

    plan: str
    code: str
    torch: str
    has: bool
    asked: int
    reproduced: int = 0
    others: list[str] = field(default_factory=list)
    none: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """The row of the table, and below it what the other runs came to."""
        runs = self.reproduced + len(self.others)
        said = "none" if self.none else f"{self.reproduced} of {runs}"
        lines = [f"{self.plan:16} {self.torch:14} {self.code:6} {said:>10} {self.seconds:8.0f}"]
        if self.none:
            lines.append(f"  {self.none}")
        elif runs < self.asked:
            lines.append(f"  {runs} of {self.asked} runs were made")
        lines += [f"  {number} {what}" for what, number in Counter(self.others).most_common()]
        return "\n".join(lines)

    def right(self) -> bool:
        """Whether it reproduced each time, on a torch that has the defect, or never otherwise."""
        return not (self.none or self.others) if self.has else not self.reproduced


def answer_of(path: Path, python: str) -> str:
    """One run of a script: ``reproduced``, ``not reproduced``, or what it said instead."""
    answer = run_script(path, python)
    if isinstance(answer, str):
        return answer
    return "reproduced" if answer else "not reproduced"


def show(shown: Shown, python: Interpreter, out: Path, options) -> None:
    """Force the plan's race once, write its script, and run that ``options.count`` times.

    Raises:
        KeyboardInterrupt: after the runs that were going on; what was counted is in ``shown``.
    """
    began = time.monotonic()
    bench = forced.Bench(shown.plan, python, out, options)
    try:
        outcome = bench.runner.run(NAMED[shown.plan], 0)
        recording = Recording(out / outcome.folder)
        parts = Parts(torch=python.torch, python=python.python)
        path = out / f"{shown.plan}-{SCRIPT}"
        found = Forced(diagnose(recording), recording, NAMED[shown.plan], parts)
        code = write_script(path, found).code
        if code != shown.code:
            shown.none = f"the script is of {code}"
            return
        _count(shown, path, python.path, options)
    except NoScript as why:
        shown.none = f"no script: {why}"
    finally:
        bench.runner.stop()
        shown.seconds = round(time.monotonic() - began, 1)


def _count(shown: Shown, path: Path, python: str, options) -> None:
    pool = ThreadPoolExecutor(options.jobs)
    futures = [pool.submit(answer_of, path, python) for _ in range(options.count)]
    try:
        for future in as_completed(futures):
            if future.result() == "reproduced":
                shown.reproduced += 1
            else:
                shown.others.append(future.result())
    finally:
        pool.shutdown(cancel_futures=True)


def main(argv=None) -> int:
    """Run all plans' scripts and print a line for each; returns the exit code."""
    interrupts.be_usual()
    options, python = forced.options_of(argv, __doc__, count=20)
    print(f"{forced.machine(python, options)}\n{HEAD}", flush=True)
    rows: list[Shown] = []
    code = 0
    try:
        with tempfile.TemporaryDirectory(prefix="scripts-") as out:
            for name in options.plans:
                has = forced.has_defect(name, python.torch)
                code_of = forced.RACES[name].code
                rows.append(Shown(name, code_of, python.torch, has, options.count))
                try:
                    show(rows[-1], python, Path(out), options)
                finally:
                    print(rows[-1].line(), flush=True)
                    _write(options.json, python, rows)
    except KeyboardInterrupt:
        print("interrupted: the counts are of the runs that had ended", file=sys.stderr)
        code = 130
    return code or int(not all(row.right() for row in rows))


def _write(path, python: Interpreter, rows: list[Shown]) -> None:
    if path is not None:
        about = {"torch": python.torch, "python": python.python, "cores": os.cpu_count()}
        content = {**about, "scripts": [asdict(row) for row in rows]}
        path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
