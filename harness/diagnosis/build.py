"""``diagnose``: from a run folder to a report."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.causes import CAUSES
from harness.causes.base import Cause, Explanation, Found
from harness.causes.errors import explained
from harness.causes.lost_options import lost_options
from harness.diagnosis import (
    chain,
    counts,
    coverage,
    gaps,
    headline,
    inventory,
    marked,
    memory,
    people,
    reading,
    roles,
    texts,
    verdict,
)
from harness.diagnosis.gaps import Expectations
from harness.diagnosis.report import Counts, Environment, Finding, NotWatched, Report, Verdict
from harness.statements import Note
from harness.timeline.recording import Recording
from harness.timeline.timeline import Timeline

T = TypeVar("T")

__all__ = ["Expectations", "diagnose"]


def diagnose(
    source: Path | str | Recording,
    expectations: Expectations | None = None,
    causes: Sequence[Cause] = CAUSES,
) -> Report:
    """Diagnose a recording.

    The same recording gives the same report, whatever machine reads it and whenever.

    Args:
        source: a run folder, or one already opened.
        expectations: what the program must have done for its verdict to count; None: what the
            recording says.
        causes: the causes to look for.

    Raises:
        OSError: the folder cannot be read.
    """
    recording = source if isinstance(source, Recording) else Recording(source)
    run = recording.run
    asked = _ask_all(recording.timelines(), causes)
    judged = _judge(
        recording,
        expectations or Expectations(run.expected_threads if run else None),
        asked,
        explanations=[cause.EXPLANATION for cause in causes],
    )
    return _report(recording, asked, judged)


@dataclass(frozen=True)
class _Asked:
    """A recording's processes, and what the causes said of each, by its id.

    ``accounted``: for each error that a finding explains, by its event, the findings' codes.
    """

    timelines: Sequence[Timeline]
    found: Mapping[int, Sequence[Found]]
    notes: Sequence[Note]
    accounted: Mapping[int, Mapping[int, tuple[str, ...]]]
    counts: Counts


@dataclass(frozen=True)
class _Judged:
    """The verdict and what it rests on; ``missing``: what was not watched, or not reached."""

    verdict: Verdict
    exit_code: int
    headline: str
    findings: Sequence[Finding]
    missing: Sequence[NotWatched]
    expected_threads: int | None


def _judge(
    recording: Recording,
    expectations: Expectations,
    asked: _Asked,
    *,
    explanations: Sequence[Explanation],
) -> _Judged:
    findings = _draw(asked.found, explanations)
    unwatched = gaps.gaps(recording, asked.timelines, explanations)
    unmet = gaps.unmet(expectations, asked.timelines)
    decided = verdict.decide(
        readable=bool(asked.timelines),
        findings=findings,
        gaps=unwatched,
        unmet=unmet,
        compiled_calls=asked.counts.threads_with_compiled_calls,
        interrupted=gaps.interrupted_early(recording),
    )
    missing = [*unwatched, *unmet]
    said = headline.headline(
        decided,
        findings=findings,
        said=headline.sentences(asked.found),
        timelines=asked.timelines,
        counts=asked.counts,
        missing=missing,
        ended=recording.ended,
    )
    code = int(verdict.exit_code(decided, recording.ended))
    return _Judged(decided, code, said, findings, missing, expectations.threads)


def _report(recording: Recording, asked: _Asked, judged: _Judged) -> Report:
    timelines, found, accounted = asked.timelines, asked.found, asked.accounted
    return Report(
        verdict=judged.verdict,
        exit_code=judged.exit_code,
        headline=judged.headline,
        findings=tuple(judged.findings),
        notes=tuple(asked.notes),
        counts=asked.counts,
        after_warmup=marked.after_warmup(timelines),
        coverage=_join(coverage.coverage(timeline) for timeline in timelines),
        caches=_join(inventory.caches(timeline) for timeline in timelines),
        errors=_join(people.errors(t, accounted[t.pid]) for t in timelines),
        threads=_join(people.threads(timeline) for timeline in timelines),
        memory=_join(memory.memory(t, found[t.pid]) for t in timelines),
        environment=_environment(timelines),
        not_watched=tuple(judged.missing),
        ended=recording.ended,
        replay=recording.run.replay if recording.run else "",
        expected_threads=judged.expected_threads,
    )


def _join(parts: Iterable[list[T]]) -> tuple[T, ...]:
    return tuple(itertools.chain.from_iterable(parts))


def _ask_all(timelines: Sequence[Timeline], causes: Sequence[Cause]) -> _Asked:
    found: dict[int, list[Found]] = {}
    notes: list[Note] = []
    for timeline in timelines:
        found[timeline.pid], own = _ask(timeline, causes)
        notes += [*own, *lost_options(timeline), *reading.notes(timeline), *marked.notes(timeline)]
        notes += texts.notes(timeline) if timeline.from_text else []
    _drop_bare_exit(found, timelines)
    accounted = {t.pid: explained(t, found[t.pid]) for t in timelines}
    return _Asked(timelines, found, notes, accounted, counts.count(timelines, accounted))


def _draw(
    found: Mapping[int, Sequence[Found]], explanations: Iterable[Explanation]
) -> list[Finding]:
    """Every process's findings with their chains, roots first."""
    by_code = {explanation.code: explanation for explanation in explanations}
    findings = [f for pid, own in found.items() for f in chain.draw(own, by_code, pid)]
    return sorted(findings, key=lambda finding: not finding.root)


def _ask(timeline: Timeline, causes: Sequence[Cause]) -> tuple[list[Found], list[Note]]:
    found: list[Found] = []
    notes: list[Note] = []
    for cause in causes:
        outcome = cause.find(timeline, tuple(found))
        if timeline.from_text:
            codes = [each.EXPLANATION.code for each in causes]
            outcome = texts.ask(timeline, cause.EXPLANATION.code, outcome, found, codes)
        found += outcome.found
        notes += outcome.notes
    return found, notes


def _drop_bare_exit(found: Mapping[int, list[Found]], timelines: Sequence[Timeline]) -> None:
    """A launcher's exit code tells nothing that the processes it started do not tell better."""
    if any(found[timeline.pid] for timeline in timelines[1:]):
        main = found[timelines[0].pid]
        main[:] = [finding for finding in main if not finding.only_exit]


def _environment(timelines: Sequence[Timeline]) -> Environment:
    headed = [timeline for timeline in timelines if timeline.header is not None]
    if not headed or headed[0].header is None:
        return Environment()
    data = headed[0].header.data
    return Environment(
        torch=data.torch,
        triton=data.triton,
        python=data.python,
        cuda=data.cuda,
        gpus=next((timeline.gpus for timeline in timelines if timeline.gpus), ()),
        platform=data.platform,
        cpus=data.cpus,
        harness=data.harness,
        argv=data.argv,
        cache_state="" if data.made_from == "text" else data.cache_state,
        made_from=data.made_from,
        cache_dir=data.cache_dir,
        started_unix=data.started_unix,
        processes=tuple(timeline.pid for timeline in timelines),
        roles=roles.roles(timelines),
        job_id=data.job_id,
        env=data.env,
        memory_cap=data.memory_cap,
        home=data.home,
    )
