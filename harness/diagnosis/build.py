"""``diagnose``: from a run folder to a report."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

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
from harness.diagnosis.report import Counts, Environment, Finding, Report
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
    expectations = expectations or Expectations(run.expected_threads if run else None)
    timelines = recording.timelines()
    found, notes = _ask_all(timelines, causes)
    accounted = {t.pid: explained(t, found[t.pid]) for t in timelines}
    judged = _judge(
        recording,
        expectations,
        timelines=timelines,
        found=found,
        explanations=[cause.EXPLANATION for cause in causes],
        totals=counts.count(timelines, accounted),
    )
    report = msgspec.structs.replace(judged, notes=tuple(notes), replay=run.replay if run else "")
    return _with_sections(report, timelines, found, accounted)


def _judge(
    recording: Recording,
    expectations: Expectations,
    *,
    timelines: Sequence[Timeline],
    found: Mapping[int, Sequence[Found]],
    explanations: Sequence[Explanation],
    totals: Counts,
) -> Report:
    """The report with its verdict and what that rests on: findings, counts, what is missing."""
    findings = _draw(found, explanations)
    unwatched = gaps.gaps(recording, timelines, explanations)
    unmet = gaps.unmet(expectations, timelines)
    missing = [*unwatched, *unmet]
    decided = verdict.decide(
        readable=bool(timelines),
        findings=findings,
        gaps=unwatched,
        unmet=unmet,
        compiled_calls=totals.threads_with_compiled_calls,
    )
    said = headline.headline(
        decided,
        findings=findings,
        said=headline.sentences(found),
        timelines=timelines,
        counts=totals,
        missing=missing,
        ended=recording.ended,
    )
    return Report(
        verdict=decided,
        exit_code=int(verdict.exit_code(decided, recording.ended)),
        headline=said,
        findings=tuple(findings),
        counts=totals,
        not_watched=tuple(missing),
        ended=recording.ended,
        expected_threads=expectations.threads,
    )


def _with_sections(
    report: Report,
    timelines: Sequence[Timeline],
    found: Mapping[int, Sequence[Found]],
    accounted: Mapping[int, Mapping[int, tuple[str, ...]]],
) -> Report:
    """The report with what is told of the processes: coverage, caches, errors, threads, memory."""
    return msgspec.structs.replace(
        report,
        after_warmup=marked.after_warmup(timelines),
        environment=_environment(timelines),
        coverage=_join(coverage.coverage(timeline) for timeline in timelines),
        caches=_join(inventory.caches(timeline) for timeline in timelines),
        errors=_join(people.errors(t, accounted[t.pid]) for t in timelines),
        threads=_join(people.threads(timeline) for timeline in timelines),
        memory=_join(memory.memory(t, found[t.pid]) for t in timelines),
    )


def _join(parts: Iterable[list[T]]) -> tuple[T, ...]:
    return tuple(itertools.chain.from_iterable(parts))


def _ask_all(
    timelines: Sequence[Timeline], causes: Sequence[Cause]
) -> tuple[dict[int, list[Found]], list[Note]]:
    found: dict[int, list[Found]] = {}
    notes: list[Note] = []
    for timeline in timelines:
        found[timeline.pid], own = _ask(timeline, causes)
        notes += [*own, *lost_options(timeline), *reading.notes(timeline), *marked.notes(timeline)]
        notes += texts.notes(timeline) if timeline.from_text else []
    _drop_bare_exit(found, timelines)
    return found, notes


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
