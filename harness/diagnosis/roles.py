"""What each process of a run was: a rank, a child of multiprocessing's, a fork, another program."""

import itertools
from collections.abc import Sequence

from harness.events.program import HeaderData
from harness.timeline.timeline import Timeline

_LONGEST = 60
# What multiprocessing gives to ``python -c`` (Lib/multiprocessing/spawn.py and forkserver.py).
_SPAWNED = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")


def roles(timelines: Sequence[Timeline]) -> dict[int, str]:
    """What can be told of each process, by its id; the main one only if it is a rank."""
    found: dict[int, str] = {}
    main = timelines[0] if timelines else None
    for timeline in timelines:
        header = timeline.header.data if timeline.header is not None else None
        first = main.header.data if main is not None and main.header is not None else None
        if header is None:
            continue
        role = _role(header, None if timeline is main else first)
        if role:
            found[timeline.pid] = role
    return found


def _role(header: HeaderData, main: HeaderData | None) -> str:
    """``main``: the main process's header; None: it is this process's."""
    if header.rank:
        return f"rank {header.rank}"[:_LONGEST]
    if main is None:
        return ""
    if any(code in word for word in header.argv for code in _SPAWNED):
        return "spawned by multiprocessing"
    if header.argv == main.argv:
        return "forked"
    return f"runs {_program(header.argv)}"[:_LONGEST]


def _program(argv: Sequence[str]) -> str:
    """The script or module in an interpreter's command line, as far as it can be told."""
    for before, word in itertools.pairwise(argv):
        if before == "-c":
            return "python -c"
        if before == "-m":
            return f"-m {word}"
        if not word.startswith("-") and before not in {"-W", "-X"}:
            return word.rpartition("/")[2]
    return "another program"
