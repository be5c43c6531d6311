"""The report's counts: exact also where a long recording's records are folded."""

from collections.abc import Container, Mapping, Sequence

from harness.causes.counting import dense_total
from harness.causes.errors import torchs_own
from harness.diagnosis.report import Counts
from harness.timeline.timeline import Timeline


def count(timelines: Sequence[Timeline], accounted: Mapping[int, Container[int]]) -> Counts:
    """The counts over all processes. ``accounted``: by process, seqs of errors with a cause."""
    histories = [history for timeline in timelines for history in timeline.program_codes()]
    folded = [timeline.folded for timeline in timelines]
    return Counts(
        compiles=sum(history.compiles_seen for history in histories)
        + sum(f.compiles for f in folded),
        compiles_after_warmup=sum(history.compiles_after_warmup() for history in histories),
        threads_with_compiled_calls=sum(len(t.workload_threads()) for t in timelines)
        + sum(f.callers for f in folded),
        threads_with_backward=sum(
            bool(thread.backwards) and not thread.autograd
            for timeline in timelines
            for thread in timeline.threads.values()
        )
        + sum(f.with_backward for f in folded),
        fallbacks=sum(dense_total(timeline.dense) for timeline in timelines),
        thread_errors=sum(
            error.times
            for timeline in timelines
            for error in timeline.errors
            if error.seq in accounted[timeline.pid] or not torchs_own(timeline, error)
        ),
    )
