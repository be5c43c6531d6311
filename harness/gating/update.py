"""``--update-baseline``: what was measured becomes the baseline of this torch and these devices."""

import datetime as dt
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_min.errors import UsageError
from harness.exits import ExitCode
from harness.gating.baseline import (
    Baseline,
    BaselineEntry,
    Key,
    differences,
    to_toml,
    write_baseline,
)
from harness.gating.compare import (
    FAILED,
    HUNG,
    INCOMPLETE,
    NOT_RUN,
    NOTHING,
    SKIPPED,
    Measured,
)
from harness.render.output import reader_may_leave

_NO_RESULT = {HUNG, INCOMPLETE, FAILED, NOT_RUN, NOTHING}
_LEAST_TOLERANCE = 0.05
"""Of a ratio: less than this differs between machines of one kind."""


@dataclass(frozen=True)
class Known:
    """What is written of a result that is not right: where it is known, and until when."""

    upstream: str = ""
    expires: dt.date | None = None


def updated(
    baseline: Baseline,
    measured: Sequence[Measured],
    known: Known,
    today: dt.date,
    commit: str,
) -> tuple[list[BaselineEntry], list[str]]:
    """The new entries, and what could not be recorded.

    Entries of other torch versions and devices, and of entries of the suite that were not run, stay
    as they are. So does an entry whose result could not be decided. One that has the same result
    again keeps everything.

    Raises:
        UsageError: a result that is not right has no upstream reference and date.
    """
    results: dict[Key, list[Measured]] = {}
    for one in measured:
        results.setdefault(one.key, []).append(one)
    entries = dict(baseline.entries)
    left: list[str] = []
    for key, runs in results.items():
        kinds = {one.result for one in runs}
        name = key.test or key.scenario
        if kinds & _NO_RESULT or runs[0].fault:
            left.append(f"{name}: {'; '.join(sorted(kinds))}, which is no result to record")
        elif len(kinds) > 1:
            left.append(f"{name}: its runs differ ({', '.join(sorted(kinds))})")
        else:
            entries[key] = _entry(entries.get(key), runs[0], known, today, commit)
    for key in _gone(baseline, results):
        del entries[key]
    return list(entries.values()), left


def _gone(baseline: Baseline, results: dict[Key, list[Measured]]) -> list[Key]:
    """Entries of scenarios that ran from end to end and have no such test any more."""
    whole: dict[tuple[str, str, str], bool] = {}
    for key, runs in results.items():
        of = (key.scenario, key.torch, key.device)
        decided = not any(one.result in _NO_RESULT for one in runs)
        whole[of] = whole.get(of, True) and decided
    return [
        key
        for key in baseline.entries
        if key not in results and whole.get((key.scenario, key.torch, key.device))
    ]


def _entry(
    old: BaselineEntry | None, one: Measured, known: Known, today: dt.date, commit: str
) -> BaselineEntry:
    right = one.result in {one.right, SKIPPED}
    unchanged = old is not None and old.result == one.result
    if old is not None and unchanged and one.ratio is None:
        expired = old.expires is not None and old.expires <= today
        if not expired or known.expires is None:
            return old
    if not right and not (known.upstream and known.expires):
        name = one.key.test or one.key.scenario
        raise UsageError(
            f"{name} is {one.result} and should be {one.right}: to record it as known, give "
            "--upstream and --expires"
        )
    key = one.key
    return BaselineEntry(
        scenario=key.scenario,
        test=key.test,
        torch=key.torch,
        device=key.device,
        schedule=key.schedule,
        result=one.result,
        upstream="" if right else known.upstream,
        expires=None if right else known.expires,
        ratio=one.ratio,
        tolerance=None if one.noise is None else max(_LEAST_TOLERANCE, round(one.noise, 2)),
        recorded=today,
        commit=commit,
    )


def record(
    baseline: Baseline,
    entries: Sequence[BaselineEntry],
    left: Sequence[str],
    *,
    yes: bool,
    tell: Callable[[str], None],
) -> ExitCode:
    """Show what changes in the baseline's file and, if that is agreed to, write it.

    Args:
        baseline: as it is.
        entries: as they are to be.
        left: what could not be recorded.
        yes: agreed to already; else a person at the terminal is asked.
        tell: says a line on stderr.

    Returns:
        FOUND where it differs and is not written, INCOMPLETE where something is left.

    Raises:
        UsageError: it cannot be written to.
    """
    path, new = baseline.path, to_toml(entries)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    changes = differences(old, new, path.name)
    with reader_may_leave(kept=tell):
        sys.stdout.write(changes or f"{path} stays as it is\n")
    for line in left:
        tell(f"not recorded: {line}")
    if changes and not (yes or _agreed(path)):
        tell(f"{path} is as it was; --yes writes it")
        return ExitCode.FOUND
    if changes:
        write_baseline(path, new)
        tell(f"{path} is written: review and commit it")
    return ExitCode.INCOMPLETE if left else ExitCode.CLEAN


def _agreed(path: Path) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    return input(f"Write {path}? [y/N] ").strip().lower() in {"y", "yes"}
