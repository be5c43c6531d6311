"""Runs one entry of the suite and says what came of it: specs, and performance entries."""

import itertools
import os
import re
import shlex
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_min.errors import UsageError
from harness.exits import ExitCode
from harness.gating.baseline import Key
from harness.gating.children import Ran, run_child
from harness.gating.compare import ABORTED, FAILED, HUNG, INCOMPLETE, NOTHING, Measured
from harness.gating.diagnosed import Diagnosed, diagnosed, reports_below
from harness.gating.gpus import LEASED, VISIBLE
from harness.gating.suite import MEASURED, Entry

_TO_REPORT_S = 20.0
"""Seconds of an entry's budget that the harness itself keeps for its report of a hang."""
_FAILED_COMMAND = "failed"
_GATES_OWN = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")

_BY_CODE = {
    ExitCode.FAILED: FAILED,
    ExitCode.INCOMPLETE: INCOMPLETE,
    ExitCode.NOTHING_RAN: NOTHING,
    ExitCode.INTERRUPTED: INCOMPLETE,
}


@dataclass(frozen=True)
class Place:
    """Where and on what an entry runs.

    Attributes:
        root: the suite's folder, in which commands run.
        out: the gate's folder.
        torch, device: of the key of its results.
        gpus: what it sees, as CUDA_VISIBLE_DEVICES names them.
        busy_gib: so much of a GPU's memory in use is no neighbour's.
        limit_s: seconds for one run.
        stopped: set once the gate is to end.
    """

    root: Path
    out: Path
    torch: str
    device: str
    gpus: tuple[str, ...]
    busy_gib: float
    limit_s: float
    stopped: threading.Event

    def key(self, entry: Entry, test: str = "") -> Key:
        """The key of an entry's result."""
        return Key(
            scenario=entry.name,
            test=test,
            torch=self.torch,
            device=self.device,
            schedule=entry.schedule,
        )

    def environment(self) -> dict[str, str]:
        """The environment of what is started."""
        environment = {k: v for k, v in os.environ.items() if k not in _GATES_OWN}
        environment[VISIBLE] = environment[LEASED] = ",".join(self.gpus)
        environment["PYTHONUNBUFFERED"] = "1"
        return environment

    def run(self, command: Sequence[str], log: Path, more: Mapping[str, str] | None = None) -> Ran:
        """Run a command here; see ``run_child``."""
        return run_child(
            command,
            cwd=self.root,
            environment={**self.environment(), **(more or {})},
            log=log,
            limit_s=self.limit_s,
            stopped=self.stopped,
        )


def folder_of(entry: Entry, place: Place, run: int) -> Path:
    """Make the folder of one run of an entry. Raises OSError."""
    folder = place.out / "runs" / entry.name / str(run)
    folder.mkdir(parents=True)
    return folder


def run_spec(entry: Entry, place: Place, run: int) -> list[Measured]:
    """Run ``harness.run`` or ``harness.watch`` once.

    Raises:
        UsageError: the command refuses its flags.
        OSError: the gate's folder cannot be written to.
    """
    folder = folder_of(entry, place, run)
    module = f"harness.{entry.kind}"
    flags = [] if _has(entry.words, "--timeout") else ["--timeout", f"{_timeout(place.limit_s):g}"]
    ran = place.run(
        [sys.executable, "-m", module, "--out", str(folder), *flags, *entry.words],
        folder / "output.log",
    )
    found = [diagnosed(path, place.busy_gib) for path in reports_below(folder)]
    one = found[-1] if found else None
    if one is None and ran.code == ExitCode.USAGE:
        raise UsageError(f"{entry.name}: {_last_line(ran)}")
    result = _spec_result(ran, one)
    said = one.headline if one is not None and not ran.signal else ran.ending
    if ran.hung:
        said = f"its {place.limit_s:.0f} s were up" + (f": {one.headline}" if one else "")
    return [
        Measured(
            key=place.key(entry),
            right=entry.expect,
            result=result,
            run=run,
            said=said,
            detail=ran.stacks if ran.hung else "" if one else ran.last_words,
            frames=one.frames if one else (),
            reproduce=_again(["python", "-m", module, *entry.words], place),
            fault=one.fault if one else "",
            folder=str((one.folder if one else folder).relative_to(place.out)),
            seconds=ran.seconds,
        )
    ]


def _spec_result(ran: Ran, one: Diagnosed | None) -> str:
    if ran.hung:
        return HUNG
    if ran.signal:
        return ABORTED
    by_code = _BY_CODE.get(ExitCode(ran.code)) if ran.code in set(ExitCode) else FAILED
    if by_code is not None or one is None:
        return by_code or FAILED
    return one.result


def run_performance(entry: Entry, place: Place) -> list[Measured]:
    """Run a and b in turn, beginning and ending with a, and compare b with the a's around it.

    The ratio is the median of the pairs'. The noise is the most by which an a differed from the one
    before: A/A pairs, measured in the same run and between the same neighbours.

    Raises:
        UsageError: a command cannot be started, or prints no figure where it should.
        OSError: the gate's folder cannot be written to.
    """
    folder = folder_of(entry, place, 1)
    figures: dict[str, list[float]] = {"a": [], "b": []}
    seconds = 0.0
    for number in range(2 * entry.count + 1):
        which = "ab"[number % 2]
        words = entry.words if which == "a" else entry.other
        command = [sys.executable if word == "python" else word for word in words[:1]]
        ran = place.run([*command, *words[1:]], folder / f"{number + 1:03}-{which}.log")
        seconds += ran.seconds
        if ran.hung or ran.code != 0:
            return [_no_figure(entry, place, which, ran, seconds)]
        figures[which].append(_figure(entry, which, ran))
    a, b = figures["a"], figures["b"]
    ratios = [2 * mine / (left + right) for mine, left, right in zip(b, a, a[1:], strict=False)]
    noise = max(abs(right / left - 1) for left, right in itertools.pairwise(a))
    ratio = statistics.median(ratios)
    return [
        Measured(
            key=place.key(entry),
            right=entry.expect,
            result=MEASURED,
            said=f"b takes {ratio:.3f} of a; a against a differs by {noise:.0%}",
            reproduce=_again(["python", "-m", "harness.gate", "--only", entry.name], place),
            folder=str(folder.relative_to(place.out)),
            seconds=round(seconds, 2),
            ratio=round(ratio, 4),
            noise=round(noise, 4),
        )
    ]


def _no_figure(entry: Entry, place: Place, which: str, ran: Ran, seconds: float) -> Measured:
    result = HUNG if ran.hung else ABORTED if ran.signal else _FAILED_COMMAND
    words = entry.words if which == "a" else entry.other
    return Measured(
        key=place.key(entry),
        right=entry.expect,
        result=result,
        said=f"{which} hung" if ran.hung else f"{which}: {ran.ending}",
        detail=ran.stacks if ran.hung else ran.last_words,
        reproduce=_again(words, place),
        folder=str(ran.log.parent.relative_to(place.out)),
        seconds=round(seconds, 2),
    )


def _figure(entry: Entry, which: str, ran: Ran) -> float:
    if not entry.number:
        return ran.seconds
    found = re.findall(entry.number, ran.last_words)
    try:
        figure = float(found[-1])
    except (IndexError, ValueError):
        figure = 0.0
    if figure <= 0:
        raise UsageError(f"{entry.name}: {which} printed no figure that fits {entry.number!r}")
    return figure


def _timeout(limit_s: float) -> float:
    return max(limit_s - _TO_REPORT_S, limit_s / 2)


def _has(words: Sequence[str], flag: str) -> bool:
    flags = words[: words.index("--")] if "--" in words else words
    return any(word.partition("=")[0] == flag for word in flags)


def _last_line(ran: Ran) -> str:
    lines = ran.last_words.strip().splitlines()
    return lines[-1] if lines else ran.ending


def _again(words: Sequence[str], place: Place) -> str:
    hidden = f"{VISIBLE}= " if not place.gpus else ""
    return hidden + shlex.join(words)
