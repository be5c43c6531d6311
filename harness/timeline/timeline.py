"""The timeline: the parsed, indexed events of one process of a run."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.events.ended import Ended
from harness.events.schema import (
    CompileDetailData,
    Header,
    Invariants,
    ProbeData,
)
from harness.timeline.model import (
    BackwardCompile,
    BlockMask,
    CodeHistory,
    Compile,
    DenseCall,
    ErrorSeen,
    FlaggedCall,
    FxTrace,
    LockWait,
    Thread,
)

_STAND_IN = re.compile(r"(?:Dummy|thread)-\d+$")


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
        forwards: dynamo compiles by compile id.
        warmup_done: when the program said that its warm-up was over.
        end_seq: seq of the event that the interpreter's exit handlers wrote; None if there is none.
        lost: events that the recorder could not write, from gaps in the numbering.
        damaged: lines that could not be read.
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
    flagged: list[FlaggedCall] = field(default_factory=list)
    dense: list[DenseCall] = field(default_factory=list)
    block_masks: list[BlockMask] = field(default_factory=list)
    errors: list[ErrorSeen] = field(default_factory=list)
    futures_read: set[int] = field(default_factory=set)
    invariants: Invariants | None = None
    detail: CompileDetailData | None = None
    detail_disagreed: bool = False
    warmup_done: int | None = None
    t0: int = 0
    t1: int = 0
    end_seq: int | None = None
    lost: int = 0
    damaged: int = 0

    @property
    def main_tid(self) -> int:
        """The main thread: on Linux its native id is the process's."""
        return self.pid

    @property
    def torch(self) -> tuple[int, int]:
        """Torch's (major, minor); (0, 0) if it is not known."""
        match = re.match(r"(\d+)\.(\d+)", self.header.data.torch if self.header else "")
        return (int(match.group(1)), int(match.group(2))) if match else (0, 0)

    def live(self, probe: str) -> bool:
        """Whether a probe was live."""
        data = self.probes.get(probe)
        return data is not None and data.state == "live"

    def program_codes(self) -> Iterator[CodeHistory]:
        """The program's compiled code objects; torch's own internal ones are left out."""
        return (history for history in self.codes.values() if not history.code.internal)

    @property
    def autograd(self) -> set[int]:
        """Threads that autograd started."""
        return {tid for tid, thread in self.threads.items() if thread.autograd}

    def served_by(self, tid: int) -> list[Thread]:
        """On whose behalf a thread may work: for autograd's, those that called backward."""
        if tid not in self.autograd:
            return []
        return [t for t in self.threads.values() if t.backwards and not t.autograd]

    def internal_compiles(self) -> list[Compile]:
        """Compiles of functions that torch compiles for its own use."""
        return [c for h in self.codes.values() if h.code.internal for c in h.compiles]

    def compiles(self) -> list[Compile]:
        """The program's dynamo compiles, in order of their beginning."""
        found = [compile_ for history in self.program_codes() for compile_ in history.compiles]
        return sorted(found, key=lambda c: c.t0)

    def compiling_at(self, t: int, *, other_than: int) -> list[Compile]:
        """Dynamo compiles, internal ones too, that other threads were inside of at time ``t``."""
        return [
            compile_
            for history in self.codes.values()
            for compile_ in history.compiles
            if compile_.on != other_than and compile_.covers(t)
        ]

    def tracing_at(self, t: int, *, other_than: int) -> list[FxTrace]:
        """FX traces that other threads were inside of at time ``t``."""
        return [trace for trace in self.fx_traces if trace.tid != other_than and trace.covers(t)]

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
            return f"thread-{tid}"
        stand_in = thread.autograd and _STAND_IN.match(thread.name)
        return f"autograd-{tid}" if stand_in else thread.name

    def workload_threads(self) -> list[Thread]:
        """Threads that called the program's compiled code, in order of their first call.

        Autograd's threads, which recompute checkpointed calls for others, are left out.
        """
        threads = [t for t in self.threads.values() if t.called_compiled and not t.autograd]
        return sorted(threads, key=lambda thread: thread.first_call or 0)
