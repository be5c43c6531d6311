"""Source lines of the frames that a report shows, read from the program's files when it is made."""

import os
import stat
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from harness.diagnosis.report import Report, SourceLine
from harness.events.values import Frame

LONGEST = 200
"""Characters of a source line that are kept."""

_LARGEST = 8 << 20
_OF_A_LIBRARY = 3


def with_source(report: Report) -> Report:
    """Return the report with the source line of each frame that it shows.

    A file that is gone, or that was changed after the run began, gives none: its lines may be other
    ones by now. Paths must still be as they were recorded.
    """
    wanted: dict[str, set[int]] = defaultdict(set)
    for frame in frames_shown(report):
        wanted[frame.file].add(frame.line)
    began = report.environment.started_unix
    lines = [line for file, numbers in wanted.items() for line in _read(file, numbers, began)]
    return msgspec.structs.replace(report, source=tuple(lines))


def frames_shown(report: Report) -> Iterator[Frame]:
    """Every frame of a report that its renderers show unfolded."""
    for finding in report.findings:
        for stack in finding.stacks:
            yield from shown(stack.frames)
    for error in report.errors:
        for link in error.chain:
            yield from shown(reversed(link.frames))
    for thread in report.threads:
        yield from shown(thread.creation_stack)


def shown(frames: Iterable[Frame]) -> list[Frame]:
    """The frames of a stack, given from the innermost on, that are shown and not folded.

    They are the program's own and the call that it was in; of a stack without a frame of the
    program's, the three innermost.
    """
    frames = list(frames)
    if not any(frame.user for frame in frames):
        return frames[:_OF_A_LIBRARY]
    return [frame for at, frame in enumerate(frames) if frame.user or at == 0]


def _read(file: str, numbers: set[int], began: float) -> list[SourceLine]:
    try:
        status = os.stat(file)  # noqa: PTH116 - a path of a recording, which may be no path at all
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return []
        if not began or status.st_mtime > began:
            return []
        with tokenize.open(file) as lines:
            return [
                SourceLine(file, number, line.strip()[:LONGEST])
                for number, line in enumerate(lines, 1)
                if number in numbers and line.strip()
            ]
    except (OSError, SyntaxError, ValueError):  # gone, no Python, or not its encoding
        return []
