"""What a timeline is made of: compact records of the events that causes and reports need.

Times are nanoseconds of CLOCK_MONOTONIC. ``seqs`` are sequence numbers of events in the recording
of one process; a record that never ended has no end time. ``times``: for so many alike a record
stands, since a long recording's are folded (``harness.timeline.folding``).

A thread's number here is its native id; where the system gave a native id to several threads, one
after another, the later ones have numbers of their own (``harness.timeline.lives``).
"""

from dataclasses import dataclass, field
from typing import Literal

from harness.events.values import CacheEntry, Code, Context, ErrorLink, Frame, TensorInput
from harness.timeline.ladder import Ladder
from harness.timeline.reasons import Reason

Config = dict[str, bool | int | float | str | None]


@dataclass(slots=True, kw_only=True)
class Span:
    """Something that one thread did from ``t0`` to ``t1`` (None: no end was recorded)."""

    tid: int
    t0: int
    t1: int | None
    seqs: tuple[int, ...]
    times: int = 1

    def covers(self, t: int) -> bool:
        """Whether time ``t`` lies inside."""
        return self.t0 <= t and (self.t1 is None or t <= self.t1)


@dataclass(slots=True, kw_only=True)
class LockWait(Span):
    """A wait for dynamo's compile lock, held by ``owner`` when it began."""

    lock: str
    owner: int | None
    where: tuple[Frame, ...] = ()


@dataclass(slots=True, kw_only=True)
class Compile(Span):
    """One call of dynamo's ``_compile``. ``entries`` and ``limit`` are as when it began.

    ``on`` is the thread that it ran on; ``tid`` the one that it is put down to, which differs on
    autograd's own threads. ``harness.events.calls.CompileData`` says what ``owner`` and ``dynamic``
    are. ``before``: it was over when the watch began; only its entry was seen, and it is put down
    to the thread that began the watch.
    """

    code: Code
    compile_id: str | None
    on: int
    context: Context | None = None
    inputs: tuple[TensorInput, ...] = ()
    entries: int | None = None
    limit: int | None = None
    owner: int | None = None
    dynamic: Literal["", "automatic", "on", "off"] = ""
    ok: bool | None = None
    reasons: tuple[Reason, ...] = ()
    entry: CacheEntry | None = None
    error: str = ""
    limit_hit: bool = False
    where: tuple[Frame, ...] = ()
    before: bool = False

    @property
    def made_entry(self) -> bool:
        """Whether it left an entry in the cache."""
        return bool(self.ok) and self.t1 is not None


@dataclass(slots=True, kw_only=True)
class Uncovered:
    """A call that no cache entry fitted: it missed or found none, waited perhaps, and compiled.

    ``t`` is when the call began, as far as it was seen. ``no_entry``: it compiled without a guard
    miss, so no entry existed when it called. ``compile`` is None where torch ran it eagerly.
    ``leader``: the compile of another thread that it waited for and then repeated.
    """

    code: Code
    tid: int
    t: int
    seqs: tuple[int, ...]
    context: Context | None
    no_entry: bool = False
    wait: LockWait | None = None
    compile: Compile | None = None
    leader: Compile | None = None
    where: tuple[Frame, ...] = ()
    count: int = 1
    times: int = 1


@dataclass(slots=True, kw_only=True)
class MeetingSpan(Span):
    """A call that can meet other threads: ``met`` are those that it did as it began or ended."""

    met: tuple[int, ...]
    error: str = ""
    where: tuple[Frame, ...] = ()


@dataclass(slots=True, kw_only=True)
class ResetSeen(MeetingSpan):
    """A call of ``torch._dynamo.reset``.

    ``met``: other threads inside a call of compiled code when it began or ended; ``compiling``:
    those inside a dynamo compile when it began.
    """

    compiling: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class FxTrace(Span):
    """A symbolic FX trace; ``in_compile``: on behalf of a dynamo compile."""

    tracer: str
    in_compile: bool
    where: tuple[Frame, ...] = ()


@dataclass(slots=True, kw_only=True)
class BackwardCompile(Span):
    """A lazy backward compile, for the forward ``compile_id``, on behalf of ``behalf``.

    ``forward``: the forward's compile; None if it is not known.
    """

    compile_id: str | None
    forward: Compile | None = None
    behalf: tuple[int, ...] = ()
    ok: bool | None = None
    error: str = ""
    where: tuple[Frame, ...] = ()


@dataclass(slots=True, kw_only=True)
class BackwardFailed:
    """A backward call failed while the threads ``others`` were inside one too."""

    tid: int
    t: int
    seq: int
    error: str
    others: tuple[int, ...]
    where: tuple[Frame, ...]


@dataclass(slots=True, kw_only=True)
class Forked:
    """This process was forked while thread ``owner`` of its parent held the compile lock."""

    tid: int
    t: int
    seq: int
    parent: int
    by: int
    owner: int
    owner_name: str
    compiling: bool
    where: tuple[Frame, ...]


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
    times: int = 1


@dataclass(slots=True, kw_only=True)
class EagerCall:
    """A call of compiled code that ran eager.

    ``by``: whose doing it was. ``setting``: where the stance that made it was set.
    ``harness.events.calls.EagerData`` says more of the fields.
    """

    tid: int
    t: int
    seq: int
    code: Code
    route: str
    detail: str
    by: int | None
    count: int
    where: tuple[Frame, ...]
    setting: "StanceSet | None" = None
    times: int = 1


@dataclass(slots=True, kw_only=True)
class StanceSet:
    """A thread set the stance of the process; ``stance`` is empty for the default one."""

    tid: int
    t: int
    seq: int
    stance: str
    where: tuple[Frame, ...]
    times: int = 1


@dataclass(slots=True, kw_only=True)
class StanceCall:
    """A call of compiled code under another stance than the default, which thread ``by`` set.

    ``setting``: where it set that stance; None if that was not seen.
    """

    tid: int
    t: int
    seq: int
    code: Code
    stance: str
    by: int | None
    where: tuple[Frame, ...]
    setting: StanceSet | None = None
    times: int = 1


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
    device: str = ""
    times: int = 1


@dataclass(slots=True, kw_only=True)
class BlockMask(Span):
    """A block mask being built; ``compiling``: other threads then inside a dynamo compile."""

    compiling: tuple[int, ...]
    error: str
    where: tuple[Frame, ...]


@dataclass(slots=True, kw_only=True)
class CompilingRead:
    """Eager code read ``is_compiling()`` as True while the threads ``compiling`` compiled."""

    tid: int
    t: int
    seq: int
    compiling: tuple[int, ...]
    count: int
    where: tuple[Frame, ...]
    times: int = 1


@dataclass(slots=True, kw_only=True)
class HoldPass:
    """A thread passed a hold, the schedule's ``number``-th counted from 0, after ``waited_s``."""

    tid: int
    t: int
    seq: int
    number: int
    hold: str
    waited_s: float


@dataclass(slots=True, kw_only=True)
class SaidSeen:
    """A line of a text that says something by its words alone."""

    tid: int
    t: int
    seq: int
    text: str


@dataclass(slots=True, kw_only=True)
class ErrorSeen:
    """An exception that ended a thread, a future's call or the program."""

    tid: int
    t: int
    seq: int
    via: Literal["main", "thread", "future"]
    chain: tuple[ErrorLink, ...]
    future: int | None
    current_device: int | None = None
    devices: tuple[str, ...] = ()
    times: int = 1

    @property
    def error(self) -> ErrorLink:
        """The exception itself."""
        return self.chain[0]

    @property
    def ids(self) -> frozenset[int]:
        """The exception objects of the chain."""
        return frozenset(link.id for link in self.chain)


@dataclass(slots=True)
class Thread:
    """One thread of a process.

    ``autograd``: its Python stack begins inside a library and not in ``threading``, so C++ started
    it, as autograd does for its device threads. It works on behalf of the threads that called
    backward: those in ``behalf``, where that was seen, and on the device ``device``. ``native`` is
    its native id, and ``life`` which of the threads with that id it is. ``ident`` is what Python
    and faulthandler call it, 0 if that is not recorded; it too can be another thread's later.
    """

    tid: int
    name: str
    native: int = 0
    life: int = 1
    ident: int = 0
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
    device: str = ""
    behalf: tuple[int, ...] = ()
    ladder: Ladder = field(default_factory=Ladder)

    @property
    def called_compiled(self) -> bool:
        """Whether it entered compiled code of the program's."""
        return self.first_call is not None
