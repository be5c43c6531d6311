"""Keeps the facts of texts of any length in bounded memory, put to the processes that they are of.

A message that repeats is kept a few times and then counted; the memory is shared by all processes.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from harness.logs.facts import (
    Compiled,
    Dump,
    Fact,
    GraphBreak,
    Guards,
    LimitHit,
    Recompile,
    Said,
    Signalled,
    Stream,
    Traceback,
    Version,
)

MAX_PROCESSES = 256
MAX_BYTES = 96 << 20
"""So much of facts is kept, by an estimate."""
ALIKE = 4
"""So many alike are kept one by one."""
_MOST: dict[type, int] = {
    Traceback: 512,
    Recompile: 2048,
    LimitHit: 256,
    Compiled: 2048,
    Guards: 2048,
    GraphBreak: 512,
    Said: 512,
    Dump: 16,
    Signalled: 16,
    Version: 4,
}
_FRAME = 300
_MAX_KINDS = 1 << 14


@dataclass(slots=True)
class Process:
    """What the texts say of one process, in order. ``pid`` is 0 where none is named.

    ``left_out``: by the fact's kind, how many were not kept.
    """

    rank: str = ""
    pid: int = 0
    facts: list[Fact] = field(default_factory=list)
    left_out: Counter[type[Fact]] = field(default_factory=Counter)
    _kinds: Counter[Hashable] = field(default_factory=Counter)
    _counts: Counter[type] = field(default_factory=Counter)

    def take(self, fact: Fact, room: int) -> int:
        """Keep the fact if there is room for it; returns about how many bytes it takes."""
        kind = _kind(fact)
        if len(self._kinds) < _MAX_KINDS or kind in self._kinds:
            self._kinds[kind] += 1
        size = _size(fact)
        many = self._counts[type(fact)] >= _MOST[type(fact)] or self._kinds[kind] > ALIKE
        if many or size > room:
            self.left_out[type(fact)] += 1
            return 0
        self._counts[type(fact)] += 1
        self.facts.append(fact)
        return size


class Keeping:
    """The processes and their facts.

    Attributes:
        facts: how many facts there were, also those that were not kept.
        processes_left_out: facts of more processes than are kept.
    """

    def __init__(self) -> None:
        self.facts = 0
        self.processes_left_out = 0
        self._room = MAX_BYTES
        self._by_rank: dict[str, Process] = {}
        self._by_pid: dict[int, Process] = {}
        self._unnamed = Process()
        self._order: list[Process] = []

    def add(self, stream: Stream, fact: Fact) -> None:
        """Take in the next fact."""
        self.facts += 1
        process = self._of(stream)
        if process is None:
            self.processes_left_out += 1
            return
        self._room -= process.take(fact, self._room)

    def processes(self) -> list[Process]:
        """Every process, in order of appearance.

        What no prefix puts to a process is put to the only one there is; else it is one of its own.
        """
        named = [process for process in self._order if process is not self._unnamed]
        if self._unnamed in self._order and len(named) == 1:
            process = named[0]
            process.facts = _in_order(self._unnamed.facts, process.facts)
            process.left_out += self._unnamed.left_out
            return named
        return list(self._order)

    def _of(self, stream: Stream) -> Process | None:
        if stream.rank:
            process = self._by_rank.get(stream.rank)
            if process is None and len(self._order) < MAX_PROCESSES:
                process = self._by_rank[stream.rank] = Process(rank=stream.rank)
                self._order.append(process)
            if process is not None and stream.pid and not process.pid:
                process.pid = stream.pid
                self._by_pid.setdefault(stream.pid, process)
            return process
        if stream.pid:
            process = self._by_pid.get(stream.pid)
            if process is None and len(self._order) < MAX_PROCESSES:
                process = self._by_pid[stream.pid] = Process(pid=stream.pid)
                self._order.append(process)
            return process
        if self._unnamed not in self._order:
            self._order.append(self._unnamed)
        return self._unnamed


def _in_order(one: list[Fact], other: list[Fact]) -> list[Fact]:
    """The facts of two streams, by files in the order in which these came, then by lines."""
    files: dict[str, int] = {}
    for fact in (*one, *other):
        files.setdefault(fact.place.file, len(files))
    return sorted([*one, *other], key=lambda fact: (files[fact.place.file], fact.place.line))


def _kind(fact: Fact) -> Hashable:  # noqa: PLR0911 - one for each kind of fact
    match fact:
        case Traceback():
            first = fact.chain[0]
            last = first.frames[-1:] and (first.frames[-1].file, first.frames[-1].line)
            return Traceback, fact.thread, first.type, first.message[:400], last
        case Recompile():
            return Recompile, fact.function, fact.number, fact.reasons, fact.thread, fact.refused
        case LimitHit():
            return LimitHit, fact.function, fact.number
        case Compiled() | Guards():
            return type(fact), fact.number, fact.place.file
        case GraphBreak():
            return GraphBreak, fact.where
        case Said():
            return Said, fact.text, fact.thread
        case Signalled():
            return Signalled, fact.signal
        case Version():
            return Version, fact.torch
        case Dump():
            return Dump, fact.place


def _size(fact: Fact) -> int:
    match fact:
        case Traceback():
            return sum(len(r.message) + _FRAME * (1 + len(r.frames)) for r in fact.chain)
        case Recompile() | Compiled():
            where = len(fact.where) if isinstance(fact, Compiled) else 0
            return 1000 + sum(map(len, fact.reasons)) + _FRAME * where
        case Guards():
            return 500 + sum(map(len, fact.lines)) + len(fact.state)
        case Dump():
            return len(fact.text) + _FRAME * sum(len(t.frames) for t in fact.threads)
        case _:
            return 1500
