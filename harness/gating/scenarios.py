"""Runs a pytest selection in a process of its own and reads what became of each test."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_min.errors import UsageError
from harness.events.values import Frame
from harness.gating.children import Ran
from harness.gating.compare import ABORTED, FAILED, HUNG, NOT_RUN, SKIPPED, Measured
from harness.gating.diagnosed import Diagnosed, diagnosed, reports_below
from harness.gating.entries import Place, folder_of
from harness.gating.suite import PASSED, Entry

# Loaded by name: pytest itself is not needed for a suite of specs.
_PLUGIN = "harness.gating.in_pytest"
# Pytest's exit codes (pytest's reference, ExitCode).
_OK, _INTERNAL_ERROR, _USAGE_ERROR, _NO_TESTS = 0, 3, 4, 5
_ERROR = "error"
_RECORD = "pytest.jsonl"


@dataclass
class Recorded:
    """What the process wrote down before it ended: see ``harness.gating.in_pytest``."""

    collected: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: str = ""

    @classmethod
    def read(cls, path: Path) -> "Recorded":
        """Read the file; the last line of a process that was killed may be cut."""
        recorded = cls()
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return recorded
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            recorded.take(event)
        return recorded

    def take(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        match event["event"]:
            case "collected":
                self.collected += event["tests"]
            case "collect_error":
                self.broken[event["test"]] = event["text"]
            case "start":
                self.started[event["test"]] = event["at"]
            case "done":
                self.done[event["test"]] = dict(event)
            case "refused":
                self.refused = event["plugin"]


def run_scenario(entry: Entry, place: Place, run: int) -> list[Measured]:
    """Run the selection once.

    Raises:
        UsageError: pytest refuses its arguments, or would run failed tests again.
        OSError: the gate's folder cannot be written to.
    """
    folder = folder_of(entry, place, run)
    needs = ["--compile-race-require-gpu", str(entry.gpus)] if entry.gpus else []
    command = [sys.executable, "-m", "pytest", "-p", _PLUGIN]
    command += ["--compile-race-record", str(folder / _RECORD), "-p", "no:cacheprovider"]
    command += [f"--basetemp={folder / 'tmp'}", *needs, *entry.words]
    ran = place.run(command, folder / "output.log")
    recorded = Recorded.read(folder / _RECORD)
    if recorded.refused:
        raise UsageError(
            f"{entry.name}: {recorded.refused} is active in pytest and runs failed tests again, "
            "which hides races; leave it out, with -p no:... if it has to stay installed"
        )
    if ran.code == _USAGE_ERROR and not recorded.started:
        raise UsageError(f"{entry.name}: pytest: {_usage(ran)}")
    return list(_Results(entry, place, run, folder, ran, recorded).all())


@dataclass(frozen=True)
class _Results:
    """The results of one process."""

    entry: Entry
    place: Place
    run: int
    folder: Path
    ran: Ran
    recorded: Recorded

    def all(self) -> Iterator[Measured]:
        """One for each test, and those of the process itself."""
        ran, recorded = self.ran, self.recorded
        for test, text in recorded.broken.items():
            yield self._measured(test, _ERROR, said="it cannot be imported", detail=text)
        named = dict.fromkeys([*recorded.collected, *recorded.started])
        for test in named:
            yield self._of_test(test)
        results = [done["result"] for done in recorded.done.values()]
        if not named and not recorded.broken and not ran.hung and not ran.signal:
            matched = f"no test matches {shlex.join(self.entry.words)}"
            internal = ran.code not in {_NO_TESTS, _OK}
            yield self._measured(
                "",
                FAILED if internal else NOT_RUN,
                said=f"pytest: {ran.ending}" if internal else matched,
                detail=ran.last_words if internal else "",
            )
        elif results and len(results) == len(named) and set(results) == {SKIPPED}:
            yield self._measured("", NOT_RUN, said=f"all {len(results)} tests were skipped")
        elif ran.code == _INTERNAL_ERROR:
            yield self._measured("", FAILED, said="pytest: internal error", detail=ran.last_words)
        elif recorded.done.keys() >= set(named) and (ran.hung or ran.signal):
            result = HUNG if ran.hung else ABORTED
            yield self._measured(
                "", result, said=f"outside of its tests: {self._ending()}", detail=self._detail()
            )

    def _of_test(self, test: str) -> Measured:
        done = self.recorded.done.get(test)
        hung_at = self.ran.hung_at
        if done is not None and hung_at is not None and done["at"] > hung_at:
            done = None  # it came to something only because it was ended
        if done is not None:
            if done["result"] in {PASSED, SKIPPED}:
                return self._measured(
                    test, done["result"], said=done["text"], seconds=done["seconds"]
                )
            return self._failed(test, done)
        began = self.recorded.started.get(test)
        if began is None or (hung_at is not None and began > hung_at):
            return self._measured(test, NOT_RUN, said=f"before its turn: {self._ending()}")
        result = HUNG if self.ran.hung else ABORTED
        return self._measured(
            test, result, said=f"in the middle of it: {self._ending()}", detail=self._detail()
        )

    def _failed(self, test: str, done: Mapping[str, Any]) -> Measured:
        one = self._diagnosed(self.recorded.started[test], done["at"])
        lines = str(done["text"]).strip().splitlines()
        said = next((line[1:].strip() for line in lines if line.startswith("E ")), "")
        where = done["where"]
        name = test.rpartition("::")[2]
        own = () if where is None else (Frame(where[0], where[1], name, user=True),)
        return self._measured(
            test,
            done["result"],
            said=f"{one.headline} ({said})" if one and said else one.headline if one else said,
            detail=done["text"],
            frames=(*own, *(one.frames if one else ())),
            fault=one.fault if one else "",
            folder=one.folder if one else None,
            seconds=done["seconds"],
        )

    def _diagnosed(self, began: float, ended: float) -> Diagnosed | None:
        """The report that the test judged: its last one, or the last before, of a fixture."""
        reports = reports_below(self.folder / "tmp")
        before = [path for path in reports if path.stat().st_mtime <= ended + 1.0]
        own = [path for path in before if path.stat().st_mtime >= began]
        found = [diagnosed(path, self.place.busy_gib) for path in (own or before[-1:])]
        return next((one for one in reversed(found) if one is not None), None)

    def _ending(self) -> str:
        if self.ran.hung:
            return f"the process hung until its {self.place.limit_s:.0f} s were up"
        return f"the process ended: {self.ran.ending}"

    def _detail(self) -> str:
        return self.ran.stacks if self.ran.hung else self.ran.last_words

    def _measured(
        self,
        test: str,
        result: str,
        *,
        said: str = "",
        detail: str = "",
        frames: Sequence[Frame] = (),
        fault: str = "",
        folder: Path | None = None,
        seconds: float = 0.0,
    ) -> Measured:
        needs = f" --compile-race-require-gpu {self.entry.gpus}" if self.entry.gpus else ""
        selection = shlex.quote(test) if test else shlex.join(self.entry.words)
        return Measured(
            key=self.place.key(self.entry, test),
            right=PASSED,
            result=result,
            run=self.run,
            said=said,
            detail=detail,
            frames=tuple(frames),
            reproduce=f"pytest {selection}{needs}",
            fault=fault,
            folder=str((folder or self.folder).relative_to(self.place.out)),
            seconds=round(seconds, 2) if test else self.ran.seconds,
        )


def _usage(ran: Ran) -> str:
    lines = [line for line in ran.last_words.splitlines() if "rror: " in line or "ERROR" in line]
    return lines[0].removeprefix("ERROR: ").strip() if lines else ran.ending
