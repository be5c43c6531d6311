"""What is known of a run before it starts: ``run.json`` of a run folder.

It is on the disk first, so that the report of a run whose parent was killed is the same.
"""

from pathlib import Path

import msgspec

from harness.child.privacy import mask
from harness.events.files import RUN, read_whole, write_whole

RUN_SCHEMA = 1


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    Attributes:
        prog: the command that started the run, such as ``harness.watch``.
        replay: the command line that does it all again.
        expected_threads: so many threads besides the main one must call compiled code and
            backward for the verdict to count; None: any number.
        started: UTC, ISO 8601.
        harness: version of the harness.
        no_source: the report is to hold no lines of the program's source.
    """

    schema: int = RUN_SCHEMA
    harness: str = ""
    prog: str = ""
    replay: str = ""
    expected_threads: int | None = None
    started: str = ""
    no_source: bool = False


def write_run(folder: Path, run: Run) -> None:
    """Write ``run.json``, masked, so that a reader sees all of it or none. Raises OSError."""
    run = msgspec.structs.replace(run, replay=mask(run.replay))
    text = msgspec.json.format(msgspec.json.encode(run), indent=2).decode()
    write_whole(folder / RUN, f"{text}\n")


def read_run(folder: Path) -> Run | None:
    """Read ``run.json``; None if there is none. Raises OSError, msgspec.DecodeError."""
    try:
        raw = read_whole(folder / RUN)
    except FileNotFoundError:
        return None
    return msgspec.json.decode(raw, type=Run)
