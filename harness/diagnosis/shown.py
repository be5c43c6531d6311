"""The report as it is written and printed: diagnosed, with source lines, safe to share."""

from pathlib import Path

from harness.diagnosis.build import diagnose
from harness.diagnosis.report import Report
from harness.diagnosis.sharing import for_sharing
from harness.diagnosis.source import with_source
from harness.timeline.recording import Recording


def report_to_show(source: Path | Recording, *, no_source: bool = False) -> Report:
    """Diagnose a run folder for a reader.

    Args:
        source: a run folder, or one already opened.
        no_source: leave source lines out; they are left out as well if the run was asked to.

    Raises:
        OSError: the folder cannot be read.
    """
    recording = source if isinstance(source, Recording) else Recording(source)
    report = diagnose(recording)
    leave_out = no_source or (recording.run is not None and recording.run.no_source)
    return for_sharing(report if leave_out else with_source(report))
