"""The files of a run folder: their names, how to find them, how to write one whole.

``events.jsonl`` is the main process's recording, ``events-PID.jsonl`` another process's, and
``steady-PID-NUMBER.jsonl`` a segment of a process's steady events. The child, which stands alone,
has these names itself.
"""

import os
from pathlib import Path

EVENTS = "events.jsonl"
RUN = "run.json"
ENDED = "ended.json"
CHILD_LOG = "child.log"
CACHE = "cache"

_OTHERS = "events-*.jsonl"
_SEGMENTS = "steady-*.jsonl"


def events_of(folder: Path, pid: int) -> Path:
    """The recording of a process other than the main one."""
    return folder / f"events-{pid}.jsonl"


def event_files(folder: Path) -> list[Path]:
    """Every process's recording that is there, the main process's first."""
    main = folder / EVENTS
    return [*([main] if main.exists() else ()), *sorted(folder.glob(_OTHERS))]


def segments(folder: Path) -> list[Path]:
    """The segments of steady events that are still there, each process's oldest first."""
    return sorted(folder.glob(_SEGMENTS))


def segment_number(path: Path) -> tuple[str, int] | None:
    """Whose segment a file is and which, counted from 1; None for a name that no recorder gives."""
    process, _, number = path.stem.rpartition("-")
    return (process, int(number)) if number.isdigit() else None


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or what was there before. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
