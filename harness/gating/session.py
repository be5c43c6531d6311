"""Runs a suite: entries side by side, within the time budget, each with its GPUs."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.child.privacy import mask
from harness.gating.baseline import Key
from harness.gating.children import StoppedError
from harness.gating.compare import NOT_RUN, SKIPPED, Measured
from harness.gating.entries import Place, run_performance, run_spec
from harness.gating.gpus import HeldError, lease
from harness.gating.machine import Machine, busy, full, look_at_gpus
from harness.gating.scenarios import run_scenario
from harness.gating.suite import Entry, Suite

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class LeftOut:
    """An entry that this machine is not for, and was not said to be for."""

    name: str
    because: str


@dataclass
class Session:
    """One run of a suite.

    Attributes:
        suite: what is run.
        out: the gate's folder.
        machine: what it runs on.
        only: names of entries; empty: all.
        require_gpus: so many GPUs have to be there.
        jobs: entries at once.
        tell: called with a line whenever an entry has ended.
        stopped: set to end what runs.
    """

    suite: Suite
    out: Path
    machine: Machine
    only: tuple[str, ...] = ()
    require_gpus: int = 0
    jobs: int = 1
    tell: Callable[[str], None] = lambda _: None
    stopped: threading.Event = field(default_factory=threading.Event)
    _began: float = field(default_factory=time.monotonic)

    def chosen(self) -> list[Entry]:
        """The entries that were asked for."""
        return [e for e in self.suite.entries if not self.only or e.name in self.only]

    def left_out(self) -> list[LeftOut]:
        """Entries for a machine with more GPUs, where none with so many was asked for."""
        there = len(self.machine.gpus)
        return [
            LeftOut(entry.name, f"it needs {entry.gpus} GPUs, {there} are visible")
            for entry in self.chosen()
            if entry.gpus > max(there, self.require_gpus)
        ]

    def run(self) -> list[Measured]:
        """Run everything; results in the suite's order.

        Raises:
            UsageError: something of the suite's cannot be run as it is written.
            OSError: the gate's folder cannot be written to.
        """
        left = {one.name for one in self.left_out()}
        entries = [entry for entry in self.chosen() if entry.name not in left]
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            futures: list[Future[list[Measured]]] = []
            try:
                futures += [pool.submit(self._entry, entry) for entry in entries]
                _wait(futures)
            finally:  # an error, or Ctrl-C
                if not all(future.done() for future in futures):
                    self.stopped.set()
                    for future in futures:
                        future.cancel()
        return [result for future in futures for result in future.result()]

    def _entry(self, entry: Entry) -> list[Measured]:
        results: list[Measured] = []
        runs = 1 if entry.kind == "performance" else entry.count
        with contextlib.ExitStack() as held:
            fault = self._no_gpu(entry)
            tokens = [gpu.token for gpu in self.machine.gpus]
            mine: tuple[str, ...] = ()
            if not fault and entry.gpus:
                try:
                    mine = held.enter_context(lease(tokens, entry.gpus, give_up=self._over))
                except HeldError:
                    fault = "the GPUs are held by another gate or pytest"
            for run in range(1, runs + 1):
                results += self._run(entry, run, mine, fault)
        self.tell(_line(entry, results))
        return results

    def _run(self, entry: Entry, run: int, mine: Sequence[str], fault: str) -> Iterator[Measured]:
        left = self._left()
        place = Place(
            root=self.suite.root,
            out=self.out,
            torch=self.machine.minor,
            device=self.machine.device_for(entry.gpus),
            gpus=tuple(mine),
            busy_gib=self.suite.gpu_busy_gib,
            limit_s=min(entry.budget_s, left),
            stopped=self.stopped,
        )
        gpus = [gpu for gpu in self.machine.gpus if gpu.token in mine]
        fault = fault or busy(gpus, self.suite.gpu_busy_gib)
        said = fault or f"the suite's {self.suite.budget_s:g} s were up"
        if fault or left <= 0:
            yield _not_run(entry, place.key(entry), run, said, fault)
            return
        for result in _results(entry, place, run):
            whole = result if _fine(result) else self._with_fault(result, place)
            yield msgspec.structs.replace(
                whole,
                said=mask(whole.said),
                detail=mask(whole.detail),
                reproduce=mask(whole.reproduce),
            )

    def _left(self) -> float:
        """Seconds of the suite's that are left."""
        return self.suite.budget_s - (time.monotonic() - self._began)

    def _over(self) -> bool:
        return self.stopped.is_set() or self._left() <= 0

    def _no_gpu(self, entry: Entry) -> str:
        there = len(self.machine.gpus)
        if not entry.gpus or there >= max(entry.gpus, self.require_gpus):
            return ""
        return (
            f"no GPU visible: {self.require_gpus} are required, {there} can be seen"
            if there < self.require_gpus
            else f"it needs {entry.gpus} GPUs, {there} can be seen"
        )

    def _with_fault(self, result: Measured, place: Place) -> Measured:
        """The result with the fault of the machine that may account for it."""
        fault = result.fault or full(self.out)
        if not fault and place.gpus:
            fault = busy(look_at_gpus(place.gpus), self.suite.gpu_busy_gib)
        return msgspec.structs.replace(result, fault=fault)


def _results(entry: Entry, place: Place, run: int) -> list[Measured]:
    match entry.kind:
        case "scenario":
            return run_scenario(entry, place, run)
        case "performance":
            return run_performance(entry, place)
        case _:
            return run_spec(entry, place, run)


def _wait(futures: Sequence[Future[list[Measured]]]) -> None:
    """Wait for all or the first error; in slices, so that Ctrl-C is heard."""
    open_ = set(futures)
    while open_:
        done, open_ = wait(open_, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
        for future in done:
            error = future.exception()
            if error is not None and not isinstance(error, StoppedError):
                raise error


def _fine(result: Measured) -> bool:
    return result.result in {result.right, SKIPPED}


def _not_run(entry: Entry, key: Key, run: int, said: str, fault: str) -> Measured:
    return Measured(key=key, right=entry.expect, result=NOT_RUN, run=run, said=said, fault=fault)


def _line(entry: Entry, results: Sequence[Measured]) -> str:
    kinds = [result.result for result in results]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f"{entry.name}: {counted or 'no result'}"
