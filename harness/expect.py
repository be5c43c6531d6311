"""What exit code a report ends a command with, given what the user expected."""

import re
from collections.abc import Collection, Sequence

from dflash_min.errors import UsageError
from harness.diagnosis.report import Report
from harness.exits import ExitCode

CLEAN = "clean"
_CODE = re.compile(r"CR\d{3}")


def check_expectations(
    expect: Sequence[str], expect_only: Sequence[str], known: Collection[str]
) -> None:
    """Refuse expectations that no report could meet or that contradict each other.

    Args:
        expect: values of ``--expect``.
        expect_only: values of ``--expect-only``.
        known: every cause's code.

    Raises:
        UsageError: naming the value.
    """
    if expect and expect_only:
        raise UsageError("--expect and --expect-only exclude each other")
    for flag, values in (("--expect", expect), ("--expect-only", expect_only)):
        if CLEAN in values and len(values) > 1:
            raise UsageError(f"{flag}: clean stands alone, or codes are given")
        for value in values:
            if value == CLEAN:
                continue
            if not _CODE.fullmatch(value):
                raise UsageError(f"{flag}: {value} is neither clean nor a code such as CR101")
            if value not in known:
                raise UsageError(f"{flag}: there is no cause {value}")


def decide_exit(report: Report, expect: Sequence[str], expect_only: Sequence[str]) -> ExitCode:
    """Return the command's exit code for a report.

    ``--expect CR101`` names roots: every root found must be named and every named root found; what
    follows from them is allowed. ``--expect-only`` compares all the findings. ``--expect clean``
    is 0 for a clean report. What could not be decided stays undecided under all of them.
    """
    verdict = ExitCode(report.exit_code)
    if verdict not in {ExitCode.CLEAN, ExitCode.FOUND} or not (expect or expect_only):
        return verdict
    wanted = set(expect or expect_only) - {CLEAN}
    found = {f.code for f in report.findings if f.root or expect_only}
    return ExitCode.CLEAN if found == wanted else ExitCode.FOUND
