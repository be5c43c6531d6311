"""Makes a schedule and its program smaller while the root causes and the verdict stay the same.

A schedule stays one: the last two holds are never left out. Whether it shows with no schedule as
well is asked at the end, since what runs cannot tell then is which holds it is that force it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Literal

import msgspec

from harness.child.schedule.order import Hold
from harness.events.files import write_whole
from harness.schedule.outcome import Outcome, Runner
from harness.schedule.plan import Plan, constraining, lettered
from harness.schedule.reductions import Reduction, Spec


class OutOfRuns(Exception):  # noqa: N818 - a limit that was asked for
    """As many runs as were allowed have been made."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One smaller variant that was tried: what was made smaller, and what that showed."""

    what: str
    holds: tuple[str, ...]
    kept: bool
    roots: tuple[str, ...]
    verdict: str


@dataclass(frozen=True)
class Case(Generic[Spec]):
    """A schedule of a program."""

    plan: Plan
    spec: Spec


@dataclass(frozen=True)
class Minimised(Generic[Spec]):
    """What minimising came to.

    Attributes:
        state: ``minimal``: no hold and no knob can be made smaller any more; ``out of runs``: more
            might be; ``not reproduced``: the original did not show the same when run again.
        original: what it began with.
        smallest: the smallest case that shows the same.
        roots: the root causes that both show.
        verdict: the verdict that both come to.
        runs: how many runs that took.
        attempts: what was tried, in order.
        free: the smallest case showed the same with no schedule, in that many runs out of as many;
            0: it did not, or there were no runs left.
    """

    state: Literal["minimal", "out of runs", "not reproduced"]
    original: Case[Spec]
    smallest: Case[Spec]
    roots: frozenset[str]
    verdict: str
    runs: int
    attempts: tuple[Attempt, ...]
    free: int = 0


def minimise(
    case: Case[Spec],
    wanted: Outcome,
    runner_for: Callable[[Spec], Runner],
    reductions: Sequence[Reduction[Spec]] = (),
    *,
    max_runs: int = 60,
    confirm: int = 2,
    confirm_free: int = 6,
    on_attempt: Callable[[Attempt], None] = lambda _: None,
) -> Minimised[Spec]:
    """Drop holds, then turn the program's knobs down, then drop holds again.

    Args:
        case: a plan and the program that it is a plan of.
        wanted: what it shows.
        runner_for: runs schedules of a program.
        reductions: the program's knobs, in the order in which to turn them; none: it has none.
        max_runs: so many runs at most.
        confirm: so many runs in a row have to show the same for a variant to be taken.
        confirm_free: the same for one without holds.
        on_attempt: called for each variant that was tried.
    """
    search = _Minimiser(wanted, runner_for, max_runs, (confirm, confirm_free), on_attempt)
    state: Literal["minimal", "out of runs", "not reproduced"] = "minimal"
    try:
        if not search.shows(case, "again"):
            state = "not reproduced"
        else:
            search.best = case
            search.reduce(case, reductions)
    except OutOfRuns:
        state = "out of runs"
    free = state == "minimal" and search.shows_without_holds()
    return Minimised(
        state=state,
        original=case,
        smallest=search.best or case,
        roots=wanted.signature[0],
        verdict=wanted.verdict,
        runs=search.runs,
        attempts=tuple(search.attempts),
        free=confirm_free if free else 0,
    )


def write_minimised(path: Path, minimised: Minimised[Spec]) -> None:
    """Write both cases and all that was tried, as JSON. Raises OSError."""
    raw = msgspec.json.encode(minimised, enc_hook=str, order="deterministic")
    write_whole(path, msgspec.json.format(raw, indent=1).decode() + "\n")


class _Minimiser(Generic[Spec]):
    def __init__(
        self,
        wanted: Outcome,
        runner_for: Callable[[Spec], Runner],
        max_runs: int,
        confirm: tuple[int, int],
        on_attempt: Callable[[Attempt], None],
    ) -> None:
        self.best: Case[Spec] | None = None
        self.runs = 0
        self.attempts: list[Attempt] = []
        self._wanted = wanted
        self._runner_for = runner_for
        self._max_runs = max_runs
        self._confirm = confirm
        self._on_attempt = on_attempt
        self._known: list[tuple[Case[Spec], bool]] = []

    def reduce(self, case: Case[Spec], reductions: Sequence[Reduction[Spec]]) -> None:
        """Make it smaller until nothing can be made smaller any more."""
        case = self._free_names(case)
        while True:
            before = case
            case = self._fewer_holds(case)
            for reduction in reductions:
                case = self._turn_down(case, reduction)
            if case == before:
                return

    def shows(self, case: Case[Spec], what: str) -> bool:
        """Whether a case shows what is wanted, each time. Raises OutOfRuns."""
        for known, answer in self._known:
            if known == case:
                return answer
        outcome: Outcome | None = None
        confirm, confirm_free = self._confirm
        for _ in range(confirm if case.plan.holds else max(confirm, confirm_free)):
            if self.runs >= self._max_runs:
                raise OutOfRuns
            self.runs += 1
            runner = self._runner_for(case.spec)
            outcome = runner.run(case.plan, 0)
            runner.drop(outcome)
            if not outcome.shows(self._wanted):
                break
        assert outcome is not None
        kept = outcome.shows(self._wanted)
        self._known.append((case, kept))
        attempt = Attempt(
            what=what,
            holds=case.plan.texts,
            kept=kept,
            roots=outcome.roots,
            verdict=outcome.verdict,
        )
        self.attempts.append(attempt)
        self._on_attempt(attempt)
        return kept

    def shows_without_holds(self) -> bool:
        """Whether the smallest case shows it with no schedule, as far as the runs left tell."""
        if self.best is None or not self.best.plan.holds:
            return False
        try:
            return self.shows(Case(replace(self.best.plan, holds=()), self.best.spec), "no holds")
        except OutOfRuns:
            return False

    def _take(self, case: Case[Spec], what: str) -> bool:
        if not self.shows(case, what):
            return False
        self.best = case
        return True

    def _free_names(self, case: Case[Spec]) -> Case[Spec]:
        """Letters for the threads' names, which change when threads are left out."""
        freed = Case(lettered(case.plan), case.spec)
        return freed if freed != case and self._take(freed, "any threads") else case

    def _fewer_holds(self, case: Case[Spec]) -> Case[Spec]:
        """Leave out threads, then single holds, until none can be."""
        smaller = True
        while smaller:
            smaller = False
            for what, holds in _without(case.plan):
                candidate = Case(constraining(holds, case.plan), case.spec)
                if candidate.plan.holds and self._take(candidate, what):
                    case, smaller = candidate, True
                    break
        return case

    def _turn_down(self, case: Case[Spec], reduction: Reduction[Spec]) -> Case[Spec]:
        smaller = True
        while smaller:
            smaller = False
            for spec in reduction.smaller(case.spec):
                candidate = Case(case.plan, spec)
                if self._take(candidate, reduction.name):
                    case, smaller = candidate, True
                    break
        return case


def _without(plan: Plan) -> Iterator[tuple[str, tuple[Hold, ...]]]:
    """What a plan has without one thing: a thread, a hold; the larger things first."""
    if len(plan.threads) > 2:
        for thread in plan.threads:
            yield f"without {thread}", tuple(h for h in plan.holds if h.thread != thread)
    for number, hold in enumerate(plan.holds):
        yield f"without {hold}", plan.holds[:number] + plan.holds[number + 1 :]
