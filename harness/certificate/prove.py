"""The proof itself: one run as the program likes, then controls, named plans and an exploration."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_min.cli import say
from dflash_min.errors import UsageError
from harness import __version__
from harness.certificate.applicable import missing
from harness.certificate.conclusion import conclude
from harness.certificate.model import Certificate, NotRun, Suggestion, TriedRun, What
from harness.certificate.trial import Harvest, Harvester, Trial, Trials
from harness.events.ended import read_ended
from harness.flow import refusal
from harness.schedule.arrivals import Arrival, arrivals
from harness.schedule.bar import Bar
from harness.schedule.named import NAMED
from harness.schedule.outcome import Outcome, Runner
from harness.schedule.plan import Plan, Schedule, serial
from harness.schedule.results import RESULTS, SearchResult
from harness.schedule.search import Search, SearchOptions
from harness.schedule.strategies.enumerate import Enumerate
from harness.schedule.token import Versions
from harness.timeline.recording import Recording

Better = tuple[Suggestion, "Subject | None"]


@dataclass(frozen=True)
class Subject:
    """A program whose warm-up is to be proved.

    Attributes:
        argv: its command line, for people.
        command: the command line that certifies it.
        ours: it is the built-in trainer, whose errors of use are ours.
        versions: what is installed for its interpreter.
        runner_for: runs its schedules, each asking the cache entries, in a folder.
        token_of: the token of a schedule.
        suggest: what warm-up would cover what a harvest shows to be missing, and the program with
            it, in a folder of the certificate's; None: none is known.
    """

    argv: tuple[str, ...]
    command: str
    ours: bool
    versions: Versions
    runner_for: Callable[[Path], Runner]
    token_of: Callable[[Schedule], str]
    suggest: Callable[[Harvest, Path], Better | None]


@dataclass(frozen=True)
class Extent:
    """How much is run: ``explore`` explored schedules, ``jobs`` runs at a time."""

    explore: int
    jobs: int


@dataclass
class Proof:
    """One certificate in the making."""

    prog: str
    subject: Subject
    extent: Extent
    folder: Path

    def run(self) -> tuple[Certificate, Subject | None]:
        """Run everything; return the certificate, and the program with the suggested warm-up.

        Ctrl-C keeps what was found, but for that in the first run, in which nothing was.

        Raises:
            UsageError: the program cannot be started.
        """
        began = time.monotonic()
        harvester = Harvester(self.subject.runner_for(self.folder), self.folder)
        say(self.prog, "running it once, its threads as they like")
        base = harvester.run(Plan(), 0)
        self._check_accepted(base)
        say(self.prog, base.headline or base.verdict)
        tested = [_tested("as it likes", "no schedule", Plan(), base, harvester.harvest)]
        trials, not_run = self._trials(base, harvester.harvest)
        result = self._search(harvester, trials) if trials else None
        if result is not None:
            tested += _all_tested(result, trials, harvester.harvest)
        better = self._better(base, harvester.harvest, result)
        suggestion, subject = better or (None, None)
        certificate = Certificate(
            verdict="incomplete",
            exit_code=4,
            headline="",
            argv=self.subject.argv,
            harness=__version__,
            torch=self.subject.versions.torch,
            python=self.subject.versions.python,
            warmup_ends=_warmup_ends(harvester.harvest),
            tested=tuple(tested),
            reported=() if result is None else tuple(result.reported),
            not_run=tuple(not_run),
            points=tuple(harvester.harvest.points()),
            coverage=tuple(harvester.harvest.table.cells()),
            left_out=harvester.harvest.table.left_out,
            suggestion=suggestion,
            complete=result is not None and result.complete,
            interrupted=result is not None and result.interrupted,
            wall_s=round(time.monotonic() - began, 1),
            command=self.subject.command,
        )
        return conclude(certificate), subject

    def _check_accepted(self, base: Outcome) -> None:
        """Hand on what the trainer says of its arguments. Raises UsageError."""
        folder = self.folder / base.folder
        ended = read_ended(folder)
        refused = refusal(ended, folder) if ended is not None and self.subject.ours else None
        if refused:
            raise UsageError(refused)

    def _trials(self, base: Outcome, harvest: Harvest) -> tuple[list[Trial], list[NotRun]]:
        """What is to be run after the first run, and the named plans that are not."""
        if base.kind != "clean" or harvest.table.uncovered:
            why = "the program falls short without any schedule"
            return [], [NotRun(name=name, reason=why) for name in NAMED]
        recording = Recording(self.folder / base.folder)
        reached = arrivals(recording, implied=True)
        plans, not_run = _named(reached)
        # A phase is the main thread's, which then waits for the others: nobody can go before it.
        places = [arrival for arrival in reached if arrival.point != "phase"]
        explored = list(Enumerate(places, bound=self.extent.explore).schedules())
        controls = [Trial("control", f"{plan.name}-serial", serial(plan)) for plan in plans]
        first = next((schedule for schedule in explored if isinstance(schedule, Plan)), None)
        if first is not None and not controls:
            controls.append(Trial("control", "serial", serial(first)))
        trials = controls + [Trial("plan", plan.name, plan) for plan in plans]
        trials += [
            Trial("exploration", f"{number} of {len(explored)}", schedule)
            for number, schedule in enumerate(explored, 1)
            if isinstance(schedule, Plan)
        ]
        return trials, not_run

    def _search(self, harvester: Harvester, trials: Sequence[Trial]) -> SearchResult:
        strategy = Trials(trials)
        say(self.prog, f"running {strategy.describe()}, each in a fresh process")
        with Bar(self.prog, len(trials)) as bar:
            return Search(
                strategy,
                harvester,
                SearchOptions(bound=len(trials) + 1, jobs=self.extent.jobs),
                path=self.folder / RESULTS,
                on_change=bar.show,
                on_find=bar.found,
                token_of=self.subject.token_of,
            ).run()

    def _better(
        self, base: Outcome, harvest: Harvest, result: SearchResult | None
    ) -> Better | None:
        short = base.kind == "found" or harvest.table.uncovered or harvest.codes
        if not short or (result is not None and result.interrupted):
            return None
        return self.subject.suggest(harvest, self.folder)


def _named(reached: Sequence[Arrival]) -> tuple[list[Plan], list[NotRun]]:
    plans: list[Plan] = []
    not_run: list[NotRun] = []
    for name, plan in NAMED.items():
        reason = missing(plan, reached)
        if reason:
            not_run.append(NotRun(name=name, reason=reason))
        else:
            plans.append(plan)
    return plans, not_run


def _all_tested(result: SearchResult, trials: Sequence[Trial], harvest: Harvest) -> list[TriedRun]:
    """The runs of a search in the order in which they were asked for."""
    found = []
    for tried in sorted(result.tried, key=lambda tried: tried.number):
        trial = trials[tried.number - 1]
        found.append(
            TriedRun(
                what=trial.what,
                name=trial.name,
                schedule=tried.schedule.text,
                kind=tried.kind,
                roots=tried.roots,
                headline=tried.headline,
                folder=tried.folder,
                compiles_after_warmup=harvest.compiles.get(tried.schedule.text, 0),
                wall_s=tried.wall_s,
            )
        )
    return found


def _tested(what: What, name: str, schedule: Plan, outcome: Outcome, harvest: Harvest) -> TriedRun:
    return TriedRun(
        what=what,
        name=name,
        schedule=str(schedule),
        kind=outcome.kind if outcome.verdict != "nothing ran" else "nothing ran",
        roots=outcome.roots,
        headline=outcome.headline,
        folder=outcome.folder,
        compiles_after_warmup=harvest.compiles.get(str(schedule), 0),
        wall_s=outcome.wall_s,
    )


def _warmup_ends(harvest: Harvest) -> str:
    if harvest.said_done:
        return "the program says so: harness.warmup_done()"
    if harvest.marked:
        return "the trainer's phase warmup ends"
    return "for each callable, a second thread comes to call it"
