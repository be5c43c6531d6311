"""What a timeline is made of: compact records of the events that causes and reports need.

Times are nanoseconds of CLOCK_MONOTONIC. ``seqs`` are sequence numbers of events in the recording
of one process; a record that never ended has no end time.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from harness.events.values import CacheEntry, Code, Context, ErrorLink, Frame, TensorInput
from harness.timeline.reasons import Reason

Config = dict[str, bool | int | float | str | None]


@dataclass(slots=True, kw_only=True)
class Span:
    """Something that one thread did from ``t0`` to ``t1`` (None: no end was recorded)."""

    tid: int
    t0: int
    t1: int | None
    seqs: tuple[int, ...]

    def covers(self, t: int) -> bool:
        """Whether time ``t`` lies inside."""
        return self.t0 <= t and (self.t1 is None or t <= self.t1)


@dataclass(slots=True, kw_only=True)
class LockWait(Span):
    """A wait for dynamo's compile lock, held by ``owner`` when it began."""

    lock: str
    owner: int | None


@dataclass(slots=True, kw_only=True)
class Compile(Span):
    """One call of dynamo's ``_compile``. ``entries`` and ``limit`` are as when it began.

    ``on`` is the thread that it ran on; ``tid`` the one that it is put down to, which differs on
    autograd's own threads.
    """

    code: Code
    compile_id: str | None
    on: int
    context: Context | None = None
    inputs: tuple[TensorInput, ...] = ()
    entries: int | None = None
    limit: int | None = None
    ok: bool | None = None
    reasons: tuple[Reason, ...] = ()
    entry: CacheEntry | None = None
    error: str = ""
    limit_hit: bool = False
    where: tuple[Frame, ...] = ()

    @property
    def made_entry(self) -> bool:
        """Whether it left an entry in the cache."""
        return bool(self.ok) and self.t1 is not None


@dataclass(slots=True, kw_only=True)
class Uncovered:
    """A call that no cache entry fitted: it missed or found none, waited perhaps, and compiled.

    ``t`` is when the call began, as far as it was seen. ``no_entry``: it compiled without a guard
    miss, so no entry existed when it called. ``compile`` is None where torch ran it eagerly.
    """

    code: Code
    tid: int
    t: int
    seqs: tuple[int, ...]
    context: Context | None
    no_entry: bool = False
    wait: LockWait | None = None
    compile: Compile | None = None
    where: tuple[Frame, ...] = ()
    count: int = 1


@dataclass(slots=True)
class Sighting:
    """First and last event of one thread on one code object."""

    t0: int
    t1: int
    seq: int
    misses: int = 0


@dataclass(slots=True)
class CodeHistory:
    """Everything seen of one compiled code object in one process.

    ``autograd`` holds the process's threads that autograd started (see ``Thread.autograd``).
    """

    code: Code
    compiles: list[Compile] = field(default_factory=list)
    uncovered: list[Uncovered] = field(default_factory=list)
    sightings: dict[int, Sighting] = field(default_factory=dict)
    entries_at_end: tuple[CacheEntry, ...] | None = None
    entries_seq: int = 0
    autograd: set[int] = field(default_factory=set)
    _warmup: list[Compile] | None = None

    @property
    def first_compiler(self) -> int | None:
        """The thread whose compile of it began first."""
        return min(self.compiles, key=lambda c: c.t0).tid if self.compiles else None

    @property
    def warmup_end(self) -> int | None:
        """When another thread than its first compiler began to call it; None: never."""
        first = self.first_compiler
        others = [
            seen.t0
            for tid, seen in self.sightings.items()
            if tid != first and tid not in self.autograd
        ]
        return min(others, default=None)

    def warmup(self) -> list[Compile]:
        """Compiles that began before a second thread called it. For a recording read to its end."""
        if self._warmup is None:
            end = self.warmup_end
            self._warmup = [c for c in self.compiles if end is None or c.t0 < end]
        return self._warmup

    def after_warmup(self) -> list[Compile]:
        """Compiles that began once another thread than the first compiler had called it."""
        end = self.warmup_end
        return [] if end is None else [c for c in self.compiles if c.t0 >= end]

    def entries_before(self, t: int) -> list[Compile]:
        """Compiles that had left an entry by time ``t``."""
        return [c for c in self.compiles if c.made_entry and c.t1 is not None and c.t1 <= t]

    def overlaps(self, tid: int) -> list[int]:
        """Other threads whose interval of calls of this code object meets that of ``tid``.

        Autograd's threads call on behalf of others: they are no others themselves, and meet others
        only where there are two, one of which they cannot be working for.
        """
        own = self.sightings.get(tid)
        if own is None:
            return []
        found = [
            other
            for other, seen in self.sightings.items()
            if other not in {tid, *self.autograd} and seen.t0 <= own.t1 and own.t0 <= seen.t1
        ]
        return found if tid not in self.autograd or len(found) > 1 else []


@dataclass(slots=True, kw_only=True)
class FxTrace(Span):
    """A symbolic FX trace; ``in_compile``: on behalf of a dynamo compile."""

    tracer: str
    in_compile: bool
    where: tuple[Frame, ...] = ()


@dataclass(slots=True, kw_only=True)
class BackwardCompile(Span):
    """A lazy backward compile, for the forward ``compile_id``, on behalf of ``behalf``."""

    compile_id: str | None
    behalf: tuple[int, ...]
    ok: bool | None = None
    error: str = ""
    where: tuple[Frame, ...] = ()


@dataclass(slots=True, kw_only=True)
class FlaggedCall:
    """A call of compiled code that found the FX-tracing flag set."""

    tid: int
    t: int
    seq: int
    code: Code | None
    nested: str
    tracing: tuple[int, ...]
    compiling: tuple[int, ...]
    count: int
    where: tuple[Frame, ...]


@dataclass(slots=True, kw_only=True)
class DenseCall:
    """Dense attention outside a compiled frame; ``count`` so far in this thread."""

    tid: int
    t: int
    seq: int
    shape: tuple[int, ...]
    dtype: str
    scores_bytes: int
    count: int
    where: tuple[Frame, ...]


@dataclass(slots=True, kw_only=True)
class BlockMask(Span):
    """A block mask being built; ``compiling``: other threads then inside a dynamo compile."""

    compiling: tuple[int, ...]
    error: str
    where: tuple[Frame, ...]


@dataclass(slots=True, kw_only=True)
class ErrorSeen:
    """An exception that ended a thread, a future's call or the program."""

    tid: int
    t: int
    seq: int
    via: Literal["main", "thread", "future"]
    chain: tuple[ErrorLink, ...]
    future: int | None

    @property
    def error(self) -> ErrorLink:
        """The exception itself."""
        return self.chain[0]

    @property
    def ids(self) -> frozenset[int]:
        """The exception objects of the chain."""
        return frozenset(link.id for link in self.chain)


@dataclass(slots=True)
class Rung:
    """A step of a thread's ladder: what it did, when, and for how long."""

    t0: int
    what: str
    detail: str
    seq: int
    t1: int | None = None
    span: bool = False


HEAD, TAIL = 60, 60


@dataclass(slots=True)
class Ladder:
    """What a thread did, in order; the middle is left out when it grows long."""

    head: list[Rung] = field(default_factory=list)
    tail: deque[Rung] = field(default_factory=lambda: deque(maxlen=TAIL))
    left_out: int = 0

    def add(self, rung: Rung) -> None:
        """Append a step."""
        if len(self.head) < HEAD:
            self.head.append(rung)
            return
        self.left_out += len(self.tail) == TAIL
        self.tail.append(rung)

    def rungs(self) -> list[Rung]:
        """The steps kept, in order."""
        return sorted([*self.head, *self.tail], key=lambda rung: rung.t0)


@dataclass(slots=True)
class Thread:
    """One thread of a process.

    ``autograd``: its Python stack begins inside a library and not in ``threading``, so C++ started
    it, as autograd does for its device threads. It works on behalf of the threads that called
    backward.
    """

    tid: int
    name: str
    creator: int | None = None
    creation: tuple[Frame, ...] = ()
    creation_seq: int = 0
    context: Context | None = None
    context_seq: int = 0
    first_call: int | None = None
    t0: int = 0
    t1: int = 0
    last_seq: int = 0
    backwards: int = 0
    steps: int = 0
    ended: bool = False
    autograd: bool = False
    ladder: Ladder = field(default_factory=Ladder)

    @property
    def called_compiled(self) -> bool:
        """Whether it entered compiled code of the program's."""
        return self.first_call is not None
