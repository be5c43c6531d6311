"""Runs a strategy's schedules side by side and replays what they find."""

import queue
import resource
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_min.errors import UsageError
from harness.schedule.outcome import Outcome, Runner, Stopped, failed
from harness.schedule.plan import Schedule
from harness.schedule.results import Asked, Reported, SearchResult, add_line, write_result
from harness.schedule.strategies import Strategy

REPLAYS = 2
_TICK_S = 0.25


@dataclass(frozen=True)
class SearchOptions:
    """How much is searched.

    Attributes:
        bound: so many schedules at most.
        jobs: so many run side by side.
        each: so many schedules are reported for one set of root causes; later ones only count.
        stop_after: end once so many have been reported; None: go on.
        limit_s: begin no further schedule after so many seconds; None: go on.
        until: end once a find with this root cause has been reported; empty: go on.
        as_given: replay what was run, not plans made from the evidence of what it found.
    """

    bound: int
    jobs: int = 1
    each: int = 1
    stop_after: int | None = None
    limit_s: float | None = None
    until: str = ""
    as_given: bool = False


Watcher = Callable[[SearchResult], None]


class Search:
    """One search. ``result`` is complete after ``run``, and on the disk at any time before."""

    def __init__(
        self,
        strategy: Strategy,
        runner: Runner,
        options: SearchOptions,
        *,
        path: Path | None = None,
        on_change: Watcher = lambda _: None,
        on_find: Callable[[Reported], None] = lambda _: None,
        token_of: Callable[[Schedule], str] = lambda _: "",
    ) -> None:
        """Make a search.

        Args:
            strategy: what to run.
            runner: how.
            options: how much.
            path: file for the result (see ``harness.schedule.results``); None: none.
            on_change: called after each run, and now and then meanwhile.
            on_find: called for what is reported.
            token_of: the token of a schedule, which takes knowing the command.
        """
        self.result = SearchResult(
            strategy=strategy.name, description=strategy.describe(), bound=options.bound
        )
        self._schedules = enumerate(strategy.schedules(), 1)
        self._runner = runner
        self._options = options
        self._path = path
        self._on_change = on_change
        self._on_find = on_find
        self._token_of = token_of
        self._exhausted = False
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(options.jobs):
            self._slots.put(slot)
        self._began = time.monotonic()
        self._cpu = children_cpu_s()

    def run(self) -> SearchResult:
        """Search to the end, the bound or Ctrl-C, which keeps what was found.

        Raises:
            UsageError: the program cannot be started.
        """
        self._write()
        with ThreadPoolExecutor(self._options.jobs, thread_name_prefix="schedule") as pool:
            try:
                self.result.complete = self._go_on(pool)
            except KeyboardInterrupt:
                self.result.interrupted = True
            finally:
                self._runner.stop()
                self._write()
        self._write(ended=True)
        return self.result

    def _go_on(self, pool: ThreadPoolExecutor) -> bool:
        """Keep all slots busy; return whether everything that was asked for was run."""
        running: dict[Future[Outcome], tuple[int, Schedule]] = {}
        more = True
        while True:
            while more and len(running) < self._options.jobs:
                following = self._following()
                more = following is not None
                if following is not None:
                    number, schedule = following
                    running[pool.submit(self._in_a_slot, schedule)] = (number, schedule)
            if not running:
                return self._exhausted
            done, _ = wait(running, timeout=_TICK_S, return_when=FIRST_COMPLETED)
            for future in done:
                number, schedule = running.pop(future)
                self._take(number, schedule, future.result(), pool)
            self._on_change(self.result)

    def _following(self) -> tuple[int, Schedule] | None:
        limit_s = self._options.limit_s
        if limit_s is not None and time.monotonic() - self._began > limit_s:
            return None
        if self._enough():
            return None
        following = next(self._schedules, None)
        if following is None or following[0] > self._options.bound:
            self._exhausted = True
            return None
        return following

    def _enough(self) -> bool:
        stop_after, until = self._options.stop_after, self._options.until
        if until and any(until in reported.roots for reported in self.result.reported):
            return True
        return stop_after is not None and len(self.result.reported) >= stop_after

    def _in_a_slot(self, schedule: Schedule) -> Outcome:
        slot = self._slots.get()
        try:
            return self._runner.run(schedule, slot)
        except (Stopped, UsageError):
            raise
        except Exception as error:  # noqa: BLE001 - one run's trouble must not end the others
            return failed(error)
        finally:
            self._slots.put(slot)

    def _take(
        self, number: int, schedule: Schedule, outcome: Outcome, pool: ThreadPoolExecutor
    ) -> None:
        self.result.add(number, schedule, outcome)
        if outcome.kind == "clean":
            self._runner.drop(outcome)
        self._clock()
        if self._path is not None:
            add_line(self._path, self.result.tried[-1])
        alike = [r for r in self.result.reported if set(r.roots) == set(outcome.roots)]
        if outcome.kind == "found" and len(alike) < self._options.each and not self._enough():
            cpu_s, runs = self.result.cpu_s, len(self.result.tried)
            replayed, again = self._replay(schedule, outcome, pool)
            reported = Reported(
                number=number,
                roots=outcome.roots,
                headline=outcome.headline,
                schedule=Asked.of(replayed),
                again=again,
                replays=REPLAYS,
                folder=outcome.folder,
                after_cpu_s=cpu_s,
                after_runs=runs,
                token=self._token_of(replayed),
            )
            self.result.reported.append(reported)
            self._write()
            self._on_find(reported)

    def _replay(
        self, schedule: Schedule, outcome: Outcome, pool: ThreadPoolExecutor
    ) -> tuple[Schedule, int]:
        """Run again what may force the find; return the schedule that does so most often."""
        best: tuple[Schedule, int] | None = None
        plans = () if self._options.as_given else outcome.plans
        for candidate in dict.fromkeys([*plans, schedule]):
            futures = [pool.submit(self._in_a_slot, candidate) for _ in range(REPLAYS)]
            again = 0
            for future in futures:
                replayed = self._wait_for(future)
                again += replayed.shows(outcome)
                if replayed.kind == "failed":
                    self.result.failed_replays += 1
                else:
                    self._runner.drop(replayed)
            if best is None or again > best[1]:
                best = candidate, again
            if again == REPLAYS:
                break
        assert best is not None
        return best

    def _wait_for(self, future: Future[Outcome]) -> Outcome:
        while True:
            with suppress(TimeoutError):
                return future.result(_TICK_S)
            self._on_change(self.result)

    def _clock(self) -> None:
        self.result.wall_s = round(time.monotonic() - self._began, 3)
        self.result.cpu_s = round(children_cpu_s() - self._cpu, 3)

    def _write(self, *, ended: bool = False) -> None:
        self._clock()
        if self._path is not None:
            write_result(self._path, self.result, ended=ended)


def children_cpu_s() -> float:
    """CPU seconds of all processes that ran below this one and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
