"""Kills watched programs at random moments: ``python tests/bench/endings.py --light 1000``.

Six kinds of ending in turn: SIGSEGV, SIGABRT, SIGKILL, SIGTERM and SIGHUP to the program, and
SIGKILL to the harness itself. ``--light`` runs a program that records without torch
(``light_child.py``), ``--trainer`` the built-in trainer on the CPU. Every run must leave

- a report that names the ending (after ``harness.report`` where the harness was killed),
- every line of the recording that a reader saw just before the kill, and
- no process.

The moments come from ``--seed``. Counts are printed, and every run that failed with what failed;
nothing is run again. Exit code 1 if any did.

Takes about 3 s a light run and 40 s one of the trainer on two cores with -j 2: 1,000 light ones
take 50 minutes, 60 of the trainer 40.
"""

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import usage

from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.diagnosis.report import loads
from harness.events.files import event_files, segments
from harness.flow import Job, run_job
from harness.render import write_all
from harness.report import make_report
from harness.spec import WatchOptions
from harness.timeline.recording import Recording

KINDS = ("SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM", "SIGHUP", "harness killed")
LIGHT = Path(__file__).with_name("light_child.py")
TRAINER = (
    *("-m", "dflash_min.train", "--device", "cpu", "--threads", "2", "--warmup", "no_grad"),
    *("--steps", "100000"),
)
LONGEST_S = 120.0


@dataclass(frozen=True)
class Plan:
    """One run: what is run, how it is ended and when, in seconds from its start."""

    number: int
    program: str
    kind: str
    moment_s: float

    def command(self) -> tuple[str, ...]:
        """The program's command line."""
        return (sys.executable, *((str(LIGHT),) if self.program == "light" else TRAINER))


@dataclass
class Outcome:
    """How a run went: what it was found to be, and what is wrong with it."""

    plan: Plan
    verdict: str = "none"
    lines: int = 0
    wrong: list[str] = field(default_factory=list)


def plans(light: int, trainer: int, seed: int, window_s: float) -> list[Plan]:
    """The runs, moments drawn from the seed: from before the watch is there to well into work.

    The trainer's moments lie within ``window_s``, of which importing torch takes the first seconds.
    """
    draw = random.Random(seed)
    found = [
        Plan(number, "light", KINDS[number % len(KINDS)], draw.uniform(0.0, 1.2))
        for number in range(light)
    ]
    return found + [
        Plan(light + number, "trainer", KINDS[number % len(KINDS)], draw.uniform(0.0, window_s))
        for number in range(trainer)
    ]


def run_once(plan: Plan) -> Outcome:
    """Run the harness in a process of its own, end the program, and look at what is left."""
    outcome = Outcome(plan)
    with tempfile.TemporaryDirectory(prefix="endings-") as out:
        harness = start_harness(plan, Path(out))
        try:
            watch_and_end(plan, outcome, harness, Path(out))
        except Exception as error:  # noqa: BLE001 - it is a result, and the other runs go on
            outcome.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(harness, signal.SIGKILL)
                os.waitpid(harness, 0)
        if outcome.wrong:
            kept = Path(tempfile.gettempdir()) / f"endings-failed-{plan.number}"
            shutil.copytree(out, kept, dirs_exist_ok=True)
            outcome.wrong.append(f"kept in {kept}")
    return outcome


def start_harness(plan: Plan, out: Path) -> int:
    """Fork a process that does what ``harness.watch`` does; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not as nohup may have left it for us
        quiet = os.open(out / "said", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        options = WatchOptions(out=out / "runs", timeout=LONGEST_S)
        options.check([cause.EXPLANATION.code for cause in CAUSES])
        captured = plan.program == "trainer"
        job = Job("bench", plan.program, plan.command(), options, captured=captured)
        code = run_job(job)
    except (UsageError, SystemExit) as error:
        print("the harness refused:", error)
    finally:
        sys.stdout.flush()
        os._exit(code)


def watch_and_end(plan: Plan, outcome: Outcome, harness: int, out: Path) -> None:
    """Wait for the program, end it at its moment, and check what is left."""
    program, others = children(harness, plan)
    time.sleep(plan.moment_s)
    (folder,) = (out / "runs").iterdir()
    if plan.kind != "harness killed":
        seen = on_disk(folder)
        os.kill(program, signal.Signals[plan.kind])
        wait_for(lambda: os.waitpid(harness, os.WNOHANG)[0] != 0, "the harness to end")
    else:
        seen = on_disk(folder)
        os.kill(harness, signal.SIGKILL)
        os.waitpid(harness, 0)
        wait_for(lambda: not any(map(runs, others)), "the guardian to leave")
        if (folder / "report.json").exists():
            outcome.wrong.append("a report before there was an ending")
        write_all(make_report(folder), folder)
    check_processes(outcome, folder, [program, *others])
    check_lines(outcome, folder, seen)
    check_report(outcome, folder)


def children(harness: int, plan: Plan) -> tuple[int, list[int]]:
    """The program's process id as soon as it is running, and those of the harness's helpers."""
    script = LIGHT.name if plan.program == "light" else "dflash_min.train"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = {pid: command_line(pid) for pid in children_of(harness)}
        program = [pid for pid, line in lines.items() if script in line]
        if program:
            return program[0], [pid for pid in lines if pid not in program]
        time.sleep(0.001)
    raise TimeoutError("the program never started")


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(word) for task in tasks for word in task.read_text().split()]
    return []


def command_line(pid: int) -> str:
    """A process's command line; empty if it is gone or has none yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def on_disk(folder: Path) -> dict[str, bytes]:
    """The whole lines of every recording in the folder, as a reader sees them now."""
    found = {}
    for path in (*event_files(folder), *segments(folder)):
        with contextlib.suppress(FileNotFoundError):
            raw = path.read_bytes()
            found[path.name] = raw[: raw.rfind(b"\n") + 1]
    return found


def check_lines(outcome: Outcome, folder: Path, seen: dict[str, bytes]) -> None:
    """Whether every line that was on the disk before the kill still is, and can be read."""
    for name, raw in seen.items():
        outcome.lines += raw.count(b"\n")
        path = folder / name
        after = path.read_bytes() if path.exists() else b""
        if not after.startswith(raw):
            outcome.wrong.append(f"{name}: lines that were on the disk are gone")
    recording = Recording(folder)
    recording.timelines()
    if recording.lines.damaged:
        outcome.wrong.append(f"{recording.lines.damaged} lines cannot be read")


def check_processes(outcome: Outcome, folder: Path, known: list[int]) -> None:
    """Whether nothing is left: neither what the harness started nor what the program did."""
    left = [pid for pid in known if runs(pid)]
    mark = str(folder).encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if mark in path.read_bytes() and runs(pid):
                left.append(pid)
    if left:
        outcome.wrong.append(
            "left behind: " + "; ".join(f"{pid} {command_line(pid)}" for pid in left)
        )


def check_report(outcome: Outcome, folder: Path) -> None:
    """Whether there is a report and its sentences name the ending."""
    path = folder / "report.json"
    if not path.exists():
        outcome.wrong.append("no report")
        return
    report = loads(path.read_bytes())
    outcome.verdict = report.verdict
    kind = outcome.plan.kind
    named = "The harness itself was killed" if kind == "harness killed" else kind
    own = [f for f in report.findings if f.code in {"CR902", "CR906"}]
    said = [report.headline, *(finding.statements[0].text for finding in own)]
    if not any(named in text for text in said):
        outcome.wrong.append(f"it is not named: {report.headline}")
    ended = report.ended
    if ended is None:
        outcome.wrong.append("the report does not say how the program ended")
    elif kind == "harness killed" and not ended.parent_killed:
        outcome.wrong.append("it is not said that the harness was killed")
    elif kind != "harness killed" and ended.signal_name != kind:
        outcome.wrong.append(f"the signal is given as {ended.signal_name or 'none'}")


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.002)


def summary(outcomes: list[Outcome]) -> str:
    """Counts for each program and kind, with the verdicts and the lines that were checked."""
    said = []
    for program in dict.fromkeys(outcome.plan.program for outcome in outcomes):
        for kind in KINDS:
            own = [o for o in outcomes if (o.plan.program, o.plan.kind) == (program, kind)]
            if own:
                right = sum(not outcome.wrong for outcome in own)
                verdicts = Counter(outcome.verdict for outcome in own)
                which = ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
                lines = sum(outcome.lines for outcome in own)
                said.append(
                    f"{program}, {kind}: {right}/{len(own)} right ({which}); {lines:,} lines seen "
                    "on the disk before the kill, none lost"
                    if right == len(own)
                    else f"{program}, {kind}: {right}/{len(own)} right ({which})"
                )
    return "\n".join(said)


def main() -> int:
    """Run the plans and print what came of them."""
    parser = usage.parser(__doc__)
    parser.add_argument("--light", type=usage.whole(0, 10**6), default=0, metavar="N", help="runs")
    parser.add_argument(
        "--trainer", type=usage.whole(0, 10**6), default=0, metavar="N", help="runs"
    )
    parser.add_argument(
        "--window",
        type=usage.decimal(0.1, 3600),
        default=40.0,
        metavar="S",
        help="the trainer's moments lie within so many seconds of its start",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "-j", type=usage.whole(1, 512), default=1, metavar="N", help="runs at a time"
    )
    options = parser.parse_args()
    if not options.light + options.trainer:
        parser.error("--light N or --trainer N, or both, say how many runs are to be made")
    todo = plans(options.light, options.trainer, options.seed, options.window)
    print(f"{len(todo)} runs, seed {options.seed}, {options.j} at a time", flush=True)
    began = time.monotonic()
    outcomes = []
    with multiprocessing.get_context("fork").Pool(options.j) as pool:
        for outcome in pool.imap_unordered(run_once, todo):
            outcomes.append(outcome)
            if outcome.wrong:
                plan = outcome.plan
                print(
                    f"run {plan.number}, {plan.program}, {plan.kind} after {plan.moment_s:.4f} s: "
                    + "; ".join(outcome.wrong),
                    flush=True,
                )
    print(summary(outcomes))
    right = sum(not outcome.wrong for outcome in outcomes)
    print(f"{right}/{len(outcomes)} right in {time.monotonic() - began:.0f} s")
    return int(right != len(todo))


if __name__ == "__main__":
    sys.exit(main())
