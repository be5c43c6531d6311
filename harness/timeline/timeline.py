"""The timeline: the parsed, indexed events of one process of a run."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.child.torch_files import FLEX_FILES, HOP_WRAPPER
from harness.events.calls import CompileDetailData
from harness.events.ended import Ended
from harness.events.program import ProbeData
from harness.events.schedules import ScheduleData
from harness.events.schema import Header, Invariants
from harness.timeline import lives
from harness.timeline.history import CodeHistory
from harness.timeline.judging import Judgement, judge_all
from harness.timeline.kernels import GraphCapture, GraphReplay, Tuning
from harness.timeline.memory import MemoryUse
from harness.timeline.model import (
    BackwardCompile,
    BackwardFailed,
    BlockMask,
    Compile,
    CompilingRead,
    DenseCall,
    EagerCall,
    ErrorSeen,
    FlaggedCall,
    Forked,
    FxTrace,
    HoldPass,
    LockWait,
    ResetSeen,
    SaidSeen,
    StanceCall,
    StanceSet,
    Thread,
)
from harness.timeline.spans import Index

_STAND_IN = re.compile(r"(?:Dummy|thread)-\d+$")


@dataclass(slots=True)
class Folded:
    """What a timeline no longer tells one by one, so as to stay small.

    Attributes:
        threads, callers, with_backward: threads that ended and of which nothing else is told; those
            of them that called the program's compiled code, and backward.
        codes, compiles: code objects that one thread alone called, and how often they compiled.
        events: events of threads beyond the number that is followed at all.
        reads: reads of futures beyond the number that is kept.
    """

    threads: int = 0
    callers: int = 0
    with_backward: int = 0
    codes: int = 0
    compiles: int = 0
    events: int = 0
    reads: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Timeline:
    """One process's recording, indexed.

    Attributes:
        pid: the process.
        ended: how the program ended; None for other processes than the main one.
        header: the recording's first line; None if it is missing.
        probes: each probe's last known state, by name.
        codes: histories of compiled code objects, by the recording's number, internal ones too.
        threads: threads by native id.
        flagged: calls that found the FX flag set.
        eager: calls of the program's compiled code that ran eager, of those that were followed.
        stances: where threads set the stance, which is one for the process.
        under_stance: calls under another stance than the default one.
        backwards_failed: backward calls that failed.
        graph_captures, graph_replays: captures of CUDA graphs; replays by changing threads.
        resets: calls of ``torch._dynamo.reset``.
        tunings: calls that tuned a triton kernel.
        forked: how the process was forked, if another thread held the compile lock then.
        forwards: dynamo compiles by compile id; in a long recording, the later ones.
        said: lines of texts that say something by their words alone.
        sources: of events that were read from texts, the lines, by seq.
        schedule: the last that was said of the schedule; None if there was none.
        passes: holds of the schedule that were passed, in order.
        warmup_done: when the program first said that its warm-up was over, and that event's seq;
            None: it never did.
        end_seq: seq of the event that the interpreter's exit handlers wrote; None if there is none.
        exit_text: the text that the program left with by ``sys.exit``; empty if there was none.
        lost: events that the recorder could not write, from gaps in the numbering.
        first_lost: the number of the first of them; None if there is none.
        cut_off: how many events other threads were writing when the program ended, and never wrote.
        left_out: how many events of a point the recorder left out to stay within its bounds.
        damaged: lines that could not be read.
        repeated: events whose number had come before; they are left out.
        clock_back: events of a thread that are older than the one before, by the clock.
        folded: what is no longer told one by one.
    """

    pid: int
    ended: Ended | None = None
    header: Header | None = None
    probes: dict[str, ProbeData] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    codes: dict[int, CodeHistory] = field(default_factory=dict)
    threads: dict[int, Thread] = field(default_factory=dict)
    forwards: dict[str, Compile] = field(default_factory=dict)
    backward_compiles: list[BackwardCompile] = field(default_factory=list)
    fx_traces: list[FxTrace] = field(default_factory=list)
    lock_waits: list[LockWait] = field(default_factory=list)
    resets: list[ResetSeen] = field(default_factory=list)
    tunings: list[Tuning] = field(default_factory=list)
    flagged: list[FlaggedCall] = field(default_factory=list)
    memory: MemoryUse = field(default_factory=MemoryUse)
    eager: list[EagerCall] = field(default_factory=list)
    stances: list[StanceSet] = field(default_factory=list)
    under_stance: list[StanceCall] = field(default_factory=list)
    dense: list[DenseCall] = field(default_factory=list)
    backwards_failed: list[BackwardFailed] = field(default_factory=list)
    graph_captures: list[GraphCapture] = field(default_factory=list)
    graph_replays: list[GraphReplay] = field(default_factory=list)
    forked: Forked | None = None
    block_masks: list[BlockMask] = field(default_factory=list)
    compiling_reads: list[CompilingRead] = field(default_factory=list)
    errors: list[ErrorSeen] = field(default_factory=list)
    said: list[SaidSeen] = field(default_factory=list)
    sources: dict[int, str] = field(default_factory=dict)
    futures_read: set[int] = field(default_factory=set)
    invariants: Invariants | None = None
    schedule: ScheduleData | None = None
    passes: list[HoldPass] = field(default_factory=list)
    detail: CompileDetailData | None = None
    detail_disagreed: bool = False
    t0: int = 0
    t1: int = 0
    warmup_done: tuple[int, int] | None = None
    end_seq: int | None = None
    exit_text: str = ""
    lost: int = 0
    cut_off: int = 0
    first_lost: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    damaged: int = 0
    repeated: int = 0
    clock_back: int = 0
    folded: Folded = field(default_factory=Folded)
    _compiling: Index[Compile] | None = None
    _tracing: Index[FxTrace] | None = None
    _judged: dict[int, Judgement] | None = None

    @property
    def main_tid(self) -> int:
        """The main thread: on Linux its native id is the process's."""
        return self.pid

    @property
    def torch(self) -> tuple[int, int]:
        """Torch's (major, minor); (0, 0) if it is not known."""
        return torch_version(self.header)

    def saw_all(self, until: int | None = None) -> bool:
        """Whether what is not in the recording did not happen, as far as it was watched.

        Not so if events are missing or the clock went back.

        Args:
            until: the seq up to which that is asked; None: the whole recording.
        """
        if self.header is None or self.from_text or self.clock_back or self.entries_before():
            return False
        if until is None and self.folded.reads:
            return False
        return self.first_lost is None or (until is not None and until < self.first_lost)

    @property
    def from_text(self) -> bool:
        """Whether it was made from texts, which hold next to nothing of what happened."""
        return self.header is not None and self.header.data.made_from == "text"

    def entries_before(self) -> dict[str, int]:
        """How many entries functions had when the watch began, by name; none if it saw all."""
        if self.header is None or not self.header.data.in_process:
            return {}
        found: dict[str, int] = {}
        for history in self.program_codes():
            number = sum(compile_.before for compile_ in history.compiles)
            if number:
                found[history.code.name] = found.get(history.code.name, 0) + number
        return found

    def live(self, probe: str) -> bool:
        """Whether a probe was live."""
        data = self.probes.get(probe)
        return data is not None and data.state == "live"

    def program_codes(self) -> Iterator[CodeHistory]:
        """The program's compiled code objects; torch's own internal ones are left out."""
        return (history for history in self.codes.values() if not history.code.internal)

    def judgements(self) -> dict[int, Judgement]:
        """Why uncovered calls of the program's code were not covered, by the call's identity.

        For a recording read to its end.
        """
        if self._judged is None:
            self._judged = judge_all(self.program_codes())
        return self._judged

    @property
    def autograd(self) -> set[int]:
        """Threads that autograd started."""
        return {tid for tid, thread in self.threads.items() if thread.autograd}

    def is_autograd(self, tid: int) -> bool:
        """Whether autograd started a thread."""
        thread = self.threads.get(tid)
        return thread is not None and thread.autograd

    def callers_of(self, tid: int) -> tuple[int, ...]:
        """Whose backward autograd's thread was seen to run; none was seen: whose it may have run.

        Empty for other threads than autograd's.
        """
        thread = self.threads.get(tid)
        if thread is None or not thread.autograd:
            return ()
        return thread.behalf or tuple(caller.tid for caller in self.served_by(tid))

    def served_by(self, tid: int) -> list[Thread]:
        """On whose behalf a thread may work: for autograd's, those that called backward."""
        if not self.is_autograd(tid):
            return []
        return [t for t in self.threads.values() if t.backwards and not t.autograd]

    def flex_wrappers(self) -> list[CodeHistory]:
        """Code objects that only an uncompiled ``flex_attention`` call compiles.

        It compiles a function around the operator (``torch/nn/attention/flex_attention.py`` of
        2.11.0, 2.13.0 and 2.14.1). Torch compiles other code of its own for other reasons.
        """
        return [
            history
            for history in self.codes.values()
            if history.code.internal
            and history.code.name == HOP_WRAPPER
            and history.code.file.endswith(FLEX_FILES)
        ]

    def compiles(self) -> list[Compile]:
        """The program's dynamo compiles, in order of their beginning."""
        found = [compile_ for history in self.program_codes() for compile_ in history.compiles]
        return sorted(found, key=lambda c: c.t0)

    def compiling_at(self, t: int, *, other_than: int, within_ns: int = 0) -> list[Compile]:
        """Dynamo compiles, internal ones too, that other threads were inside of at time ``t``.

        With ``within_ns`` also those that had ended by so little before. For a recording read to
        its end.
        """
        if self._compiling is None:
            self._compiling = Index(c for h in self.codes.values() for c in h.compiles)
        return [c for c in self._compiling.meeting(t - within_ns, t) if c.on != other_than]

    def tracing_at(self, t: int, *, other_than: int) -> list[FxTrace]:
        """FX traces that other threads were inside of at time ``t``. As ``compiling_at``."""
        if self._tracing is None:
            self._tracing = Index(self.fx_traces)
        return [trace for trace in self._tracing.covering(t) if trace.tid != other_than]

    def open_compiles(self) -> list[Compile]:
        """Dynamo compiles that began and never ended."""
        return [c for h in self.codes.values() for c in h.compiles if c.t1 is None]

    def seconds(self, t: int) -> float:
        """Seconds since the recording began."""
        return (t - self.t0) / 1e9

    def name(self, tid: int) -> str:
        """A thread's name, for people.

        Torch gives autograd's threads names of the system's (``pt_autograd_0``, with the device's
        index); where only a stand-in was recorded, the name says whose thread it is.
        """
        thread = self.threads.get(tid)
        if thread is None:
            return f"thread-{lives.native(tid)}"
        stand_in = thread.autograd and _STAND_IN.match(thread.name)
        return f"autograd-{lives.native(tid)}" if stand_in else thread.name

    def workload_threads(self) -> list[Thread]:
        """Threads that called the program's compiled code, in order of their first call.

        Autograd's threads, which recompute checkpointed calls for others, are left out.
        """
        threads = [t for t in self.threads.values() if t.called_compiled and not t.autograd]
        return sorted(threads, key=lambda thread: thread.first_call or 0)


def torch_version(header: Header | None) -> tuple[int, int]:
    """Torch's (major, minor), as a recording's header says; (0, 0) if it is not known."""
    match = re.match(r"(\d+)\.(\d+)", header.data.torch if header else "")
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
