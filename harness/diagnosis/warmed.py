"""Which compiles of a report had a warm-up before them, and which are those of a cold start."""

from collections.abc import Iterator

from harness.diagnosis.report import CodeCoverage, Report, ThreadCoverage

_COLD_START = "CR208"


def late_compilers(report: Report) -> Iterator[tuple[CodeCoverage, ThreadCoverage, bool]]:
    """The threads whose compiles ``Counts.compiles_after_warmup`` counts, with what they compiled.

    The last says whether there was a warm-up. There is none where another thread calls what has no
    entry yet, nor where two have compiled it (CR208), unless the program said where it ended.
    """
    marked = report.after_warmup is not None
    cold = {
        (finding.pid, seq)
        for finding in report.findings
        if finding.code == _COLD_START and not marked
        for seq in finding.evidence
    }
    for code in report.coverage:
        for thread in code.threads:
            if thread.state == "uncovered" and thread.compiles:
                began_cold = any((code.pid, seq) in cold for seq in thread.evidence)
                yield code, thread, marked or (bool(code.warmup) and not began_cold)


def warm_ups(report: Report) -> set[bool]:
    """Whether the late compiles had a warm-up before them: both, where some had and some had none.

    Empty where it cannot be told of any.
    """
    found = {warmed for _, _, warmed in late_compilers(report)}
    if found or report.after_warmup is not None:
        return found
    return {False} if any(finding.code == _COLD_START for finding in report.findings) else found
