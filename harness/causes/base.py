"""What a cause is: an explanation for people and a pure function from a timeline to findings.

The order of ``CAUSES`` in the package decides what a cause sees as ``earlier``.

A cause reads events and how the process ended. It never reads the command line, thread names or
the labels of phases: the same interleaving under other names is the same finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from harness.statements import Note, Remedy, SharedState, Stack, Statement, ThreadRef
from harness.timeline.timeline import Timeline


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What ``harness.explain`` prints.

    Attributes:
        code: stable cause code.
        title: its name, kebab-case.
        what: what happens, as the program's author sees it.
        why: the mechanism inside torch.
        evidence: what the recording must show.
        remedy: what removes it.
        versions: torch versions concerned.
        upstream: references to public issues and pull requests, repository#number.
        needs: probes without which it cannot be decided.
        may_follow: codes, or beginnings of codes, of the causes that can make it possible.
    """

    code: str
    title: str
    what: str
    why: str
    evidence: str
    remedy: Remedy
    versions: str
    upstream: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    may_follow: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """A finding before chains are drawn.

    Attributes:
        code: the cause's code.
        statements: what is known; the first says what happened in one sentence.
        headline: a sentence that stands alone, for the top of the report.
        explains: seqs of the misses, compiles and errors that it accounts for.
        because: seqs of the events that made it possible; it follows from whatever explains one.
        independent: some of what it says happened for no other cause's sake, so it is a root even
            though the rest follows from others.
        only_exit: it tells nothing but the exit code, which a launcher takes from the processes
            that it starts; where something is found in one of those it is left out.
        ends: it accounts for how the program ended: the crash or the hang is no finding of its own.
        threads: the threads concerned, in order of first appearance.
        remedy: what removes it; the explanation's if None.
    """

    code: str
    statements: tuple[Statement, ...]
    headline: str
    explains: frozenset[int] = frozenset()
    because: frozenset[int] = frozenset()
    independent: bool = False
    only_exit: bool = False
    ends: bool = False
    threads: tuple[ThreadRef, ...] = ()
    stacks: tuple[Stack, ...] = ()
    shared_state: SharedState | None = None
    remedy: Remedy | None = None


@dataclass(kw_only=True)
class Outcome:
    """What a cause makes of one process's timeline: findings, and notes that are none."""

    found: list[Found] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


class Cause(Protocol):
    """A module ``harness/causes/crNNN_name.py``."""

    EXPLANATION: Explanation

    def find(self, timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
        """Findings of this cause in one process. ``earlier``: those of the causes before it."""
        ...
