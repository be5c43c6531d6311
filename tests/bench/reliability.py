"""How often each command gives its verdict: ``python tests/bench/reliability.py --runs 20``.

Every run is cold (its own compile cache) and in a process of its own. Counts are printed, never
percentages, and every run that differed is named; nothing is run again. ``--cases`` adds the
programs of ``tests/cases`` whose causes have a rule. ``--healthy`` runs those of ``tests/healthy``
instead, none of which may give a finding. ``--layout 5+3`` gives the trainer of the two commands so
many target and drafter threads, a GPU each where there are as many.

Ctrl-C ends it and keeps what was counted.

Takes about 25 s a run on two cores: 20 runs of the two commands a quarter of an hour, and an hour
with --cases -j 2; five runs of --healthy -j 2 half an hour.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec
import usage

from harness import interrupts
from harness.causes import CAUSES

CASES = Path(__file__).parent.parent / "cases"
HEALTHY = Path(__file__).parent.parent / "healthy"
# CR305 up to torch 2.11, CR310 from 2.13 on.
AFTER_NO_GRAD = frozenset({"CR301", "CR303", "CR305", "CR310", "CR901"})


@dataclass(frozen=True)
class Expectation:
    """A command and what every run of it must give.

    ``roots`` must be the roots, and whatever else is found must be in ``also``. With ``lenient``
    what is in ``also`` may be a root too.
    """

    name: str
    command: tuple[str, ...]
    verdict: str
    roots: frozenset[str]
    also: frozenset[str] = frozenset()
    lenient: bool = False
    limit_s: int = 300
    """A program that hangs is told at its limit."""


@dataclass(frozen=True)
class Outcome:
    """One run: the codes it found, roots first, its wall seconds, and what was not as expected."""

    chain: str
    seconds: float
    difference: str


def trainer(threads: tuple[str, ...]) -> list[Expectation]:
    """The trainer with so many threads after each kind of warm-up."""
    command = ("harness.run", *threads, "--warmup")
    found = frozenset({"CR101"})
    return [
        Expectation("grad", (*command, "grad"), "clean", frozenset()),
        Expectation("no_grad", (*command, "no_grad"), "found", found, AFTER_NO_GRAD),
    ]


def cases() -> list[Expectation]:
    """The programs of ``tests/cases`` as ``expected.toml`` has them."""
    built = {cause.EXPLANATION.code for cause in CAUSES}
    expected = msgspec.toml.decode((CASES / "expected.toml").read_bytes())
    return [
        Expectation(
            name.split("_")[0],
            ("harness.watch", "--", str(CASES / name)),
            case["verdict"],
            frozenset(case["causes"]),
            frozenset(case["also_ok"]),
            lenient=True,
            limit_s=30 if "hang" in name else Expectation.limit_s,
        )
        for name, case in sorted(expected.items())
        if set(case["causes"]) <= built
    ]


def healthy() -> list[Expectation]:
    """The programs of ``tests/healthy``, in which nothing may be found."""
    return [
        Expectation(path.stem, ("harness.watch", "--", str(path)), "clean", frozenset())
        for path in sorted(HEALTHY.glob("*.py"))
    ]


class Commands:
    """Runs commands, until all that are going on are ended at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(self, words: list[str]) -> tuple[int, str]:
        """Run a command to its end; return its exit code and its stderr."""
        with self._lock:
            if self._ended:
                raise InterruptedError
            # In a session of its own: Ctrl-C is ours to pass on, once.
            process = subprocess.Popen(
                words,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        _, said = process.communicate()
        with self._lock:
            self._running.discard(process)
        return process.returncode, said

    def end(self) -> None:
        """End those that are going on, and let none begin; the watch ends its program with it."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.terminate()


def run_once(expectation: Expectation, commands: Commands) -> Outcome:
    """Run the command cold and hold its report against the expectation."""
    module, *rest = expectation.command
    with tempfile.TemporaryDirectory() as out:
        limit = ("--timeout", str(expectation.limit_s))
        words = [sys.executable, "-m", module, "--out", out, *limit, *rest]
        start = time.monotonic()
        exit_code, stderr = commands.run(words)
        seconds = time.monotonic() - start
        reports = list(Path(out).glob("*/report.json"))
        if not reports:
            return Outcome("no report", seconds, stderr[-500:])
        report = json.loads(reports[0].read_text())
    ended = report["ended"]
    if expectation.verdict == "clean" and (ended["exit_code"] != 0 or ended["deadline_hit"]):
        return Outcome("not to its end", seconds, stderr[-500:])
    roots = {f["code"] for f in report["findings"] if f["root"]}
    others = {f["code"] for f in report["findings"]} - roots
    chain = " ".join([*sorted(roots), *(f"({code})" for code in sorted(others))])
    extra = (roots - expectation.roots) if expectation.lenient else set()
    as_expected = (
        report["verdict"] == expectation.verdict
        and roots - extra == expectation.roots
        and others | extra <= expectation.also
        and exit_code == report["exit_code"]
    )
    return Outcome(chain or report["verdict"], seconds, "" if as_expected else report["headline"])


def summary(expectation: Expectation, outcomes: list[Outcome]) -> str:
    """One line of counts and times, and one for each run that differed."""
    right = sum(not outcome.difference for outcome in outcomes)
    chains = Counter(outcome.chain for outcome in outcomes)
    if not outcomes:
        return f"{expectation.name}: 0/0 as expected"
    times = sorted(outcome.seconds for outcome in outcomes)
    lines = [
        f"{expectation.name}: {right}/{len(outcomes)} as expected; "
        + ", ".join(f"{chain} x{count}" for chain, count in chains.most_common())
        + f"; {times[0]:.1f} / {times[len(times) // 2]:.1f} / {times[-1]:.1f} s min/median/max"
    ]
    lines += [f"  {o.chain}: {o.difference}" for o in outcomes if o.difference]
    return "\n".join(lines)


def run_all(expectation: Expectation, options, outcomes: list[Outcome]) -> None:
    """Run a command ``options.runs`` times.

    Args:
        expectation: the command's.
        options: the command line.
        outcomes: gets each outcome as it comes.

    Raises:
        KeyboardInterrupt: after the runs that were going on have been ended.
    """
    commands = Commands()
    pool = ThreadPoolExecutor(options.j)

    def run() -> None:
        # Here, not where results are waited for: those that had ended are kept.
        outcomes.append(run_once(expectation, commands))

    try:
        for future in as_completed([pool.submit(run) for _ in range(options.runs)]):
            future.result()
    finally:
        commands.end()
        pool.shutdown(cancel_futures=True)


def options_of(argv=None):
    """The command line and what is to be run; ends the command for one that does not fit."""
    parser = usage.parser(__doc__)
    parser.add_argument("--runs", type=usage.whole(1, 100_000), default=20, help="of each command")
    parser.add_argument("--cases", action="store_true", help="also the programs of tests/cases")
    parser.add_argument("--healthy", action="store_true", help="the programs of tests/healthy")
    parser.add_argument(
        "-j", type=usage.whole(1, 512), default=1, metavar="N", help="runs at a time"
    )
    parser.add_argument(
        "--layout", type=usage.layout, metavar="T+D", help="target and drafter threads, as 5+3"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these, only some, by name")
    options = parser.parse_args(argv)
    threads = ("--layout", options.layout) if options.layout else ("--threads", "3")
    commands = [] if options.healthy else trainer(threads)
    commands += [*(cases() if options.cases else []), *(healthy() if options.healthy else [])]
    if options.only:
        names = [expectation.name for expectation in commands]
        if unknown := sorted(set(options.only) - set(names)):
            parser.error(f"--only {' '.join(unknown)}: none of {', '.join(names)}")
        commands = [expectation for expectation in commands if expectation.name in options.only]
    return options, commands


def machine(options) -> str:
    """Where the runs are made, in one line."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return (
        f"torch {torch.__version__}, python {platform.python_version()}, {device}, "
        f"{os.cpu_count()} cores, {options.j} at a time, cold caches"
    )


def main(argv=None) -> int:
    """Run every command ``--runs`` times and print a line for each; exit 1 if any run differed."""
    interrupts.be_usual()
    options, commands = options_of(argv)
    differed, clean = False, 0
    try:
        print(machine(options), flush=True)
        for expectation in commands:
            outcomes: list[Outcome] = []
            try:
                run_all(expectation, options, outcomes)
            finally:
                print(summary(expectation, outcomes), flush=True)
            wrong = any(outcome.difference for outcome in outcomes)
            differed, clean = differed or wrong, clean + (not wrong)
    except KeyboardInterrupt:
        print("interrupted: the counts are of the runs that had ended", file=sys.stderr)
        return 130
    if options.healthy:
        print(f"{clean} of {len(commands)} commands as expected in each of {options.runs} runs")
    return int(differed)


if __name__ == "__main__":
    sys.exit(main())
