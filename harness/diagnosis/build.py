"""``diagnose``: from a run folder to a report."""

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from harness.causes import CAUSES
from harness.causes.base import Cause, Found
from harness.causes.cr401_dense_attention import total
from harness.causes.errors import explained, torchs_own
from harness.causes.lost_options import lost_options
from harness.diagnosis import chain, coverage, gaps, headline, people, verdict
from harness.diagnosis.gaps import Expectations
from harness.diagnosis.report import Counts, Environment, Note, Report
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
    if expectations is None:
        expectations = Expectations(recording.run.expected_threads if recording.run else None)
    timelines = recording.timelines()
    explanations = [cause.EXPLANATION for cause in causes]
    found, notes = _ask_all(timelines, causes)
    by_code = {explanation.code: explanation for explanation in explanations}
    findings = [f for pid, own in found.items() for f in chain.draw(own, by_code, pid)]
    findings.sort(key=lambda finding: not finding.root)
    unwatched = gaps.gaps(recording, timelines, explanations)
    unmet = gaps.unmet(expectations, timelines)
    accounted = {t.pid: explained(t, found[t.pid]) for t in timelines}
    counts = _counts(timelines, accounted)
    decided = verdict.decide(
        readable=any(timeline.header is not None for timeline in timelines),
        findings=findings,
        gaps=unwatched,
        unmet=unmet,
        compiled_calls=counts.threads_with_compiled_calls,
    )
    said = headline.sentences(found)
    missing = [*unwatched, *unmet]
    return Report(
        verdict=decided,
        exit_code=int(verdict.exit_code(decided, recording.ended)),
        headline=headline.headline(
            decided,
            findings=findings,
            said=said,
            timelines=timelines,
            counts=counts,
            missing=missing,
            ended=recording.ended,
        ),
        findings=tuple(findings),
        notes=tuple(notes),
        counts=counts,
        coverage=_join(coverage.coverage(timeline) for timeline in timelines),
        caches=_join(coverage.caches(timeline) for timeline in timelines),
        errors=_join(people.errors(t, accounted[t.pid]) for t in timelines),
        threads=_join(people.threads(timeline) for timeline in timelines),
        environment=_environment(timelines),
        not_watched=tuple(missing),
        ended=recording.ended,
        replay=recording.run.replay if recording.run else "",
        expected_threads=expectations.threads,
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
        notes += [*own, *lost_options(timeline)]
    _drop_bare_exit(found, timelines)
    return found, notes


def _ask(timeline: Timeline, causes: Iterable[Cause]) -> tuple[list[Found], list[Note]]:
    found: list[Found] = []
    notes: list[Note] = []
    for cause in causes:
        outcome = cause.find(timeline, tuple(found))
        found += outcome.found
        notes += outcome.notes
    return found, notes


def _drop_bare_exit(found: Mapping[int, list[Found]], timelines: Sequence[Timeline]) -> None:
    """A launcher's exit code tells nothing that the processes it started do not tell better."""
    if any(found[timeline.pid] for timeline in timelines[1:]):
        main = found[timelines[0].pid]
        main[:] = [f for f in main if not (f.code == "CR905" and not f.explains)]


def _counts(timelines: Sequence[Timeline], accounted: Mapping[int, Container[int]]) -> Counts:
    histories = [history for timeline in timelines for history in timeline.program_codes()]
    return Counts(
        compiles=sum(len(history.compiles) for history in histories),
        compiles_after_warmup=sum(len(history.after_warmup()) for history in histories),
        threads_with_compiled_calls=sum(len(t.workload_threads()) for t in timelines),
        threads_with_backward=sum(
            bool(thread.backwards) and not thread.autograd
            for timeline in timelines
            for thread in timeline.threads.values()
        ),
        fallbacks=sum(total(timeline.dense) for timeline in timelines),
        thread_errors=sum(
            error.seq in accounted[timeline.pid] or not torchs_own(timeline, error)
            for timeline in timelines
            for error in timeline.errors
        ),
    )


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
        cache_state=data.cache_state,
        cache_dir=data.cache_dir,
        started_unix=data.started_unix,
        processes=tuple(timeline.pid for timeline in timelines),
        job_id=data.job_id,
        env=data.env,
    )
