"""Events as msgspec structs: one JSON object a line, told apart by ``point``.

The child writes these lines with the standard library alone (``harness.child.recorder``), so this
file is the one description of the format and the tests hold the child to it. Fields that a later
version may add are optional; unknown fields are ignored, so an old reader reads a new recording.
"""

from typing import Literal

import msgspec

from harness.events.calls import (
    AskedData,
    AutogradData,
    BackwardCompileData,
    BackwardData,
    BlockMaskData,
    CachesData,
    CompileData,
    CompileDetailData,
    DenseAttentionData,
    EagerData,
    FxTraceData,
    GuardMissData,
    InvariantsData,
    IsCompilingData,
    LockWaitData,
    ResetData,
    StanceData,
    WrapperData,
)
from harness.events.graphs import CudaGraphData, ForkData
from harness.events.kernels import AutotuneData
from harness.events.memory import MemoryCapData, MemoryData, MemoryPeakData, OutOfMemoryData
from harness.events.program import (
    EndData,
    FutureReadData,
    GpuData,
    HeaderData,
    LeftOutData,
    PhaseData,
    ProbeData,
    SaidData,
    StepData,
    ThreadErrorData,
    ThreadStartData,
)
from harness.events.schedules import HoldPassData, ScheduleData
from harness.events.values import (
    Frame,
    Int,
)

SCHEMA_VERSION = 1

Edge = Literal["enter", "exit", "instant"]


class BaseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="point"):
    """What every line has. ``t_ns`` is CLOCK_MONOTONIC; ``tid`` is the native thread id.

    ``ident``: of a thread's first lines, what Python and faulthandler call it (``Thread.ident``).
    ``source``: the line of a text that the event was read from, as ``train.log:345``; empty where a
    program was watched. Of such events the times tell no more than their order.
    """

    t_ns: Int
    seq: Int
    pid: Int
    tid: Int
    thread: str
    edge: Edge = "instant"
    phase: str | None = None
    compile_id: str | None = None
    where: tuple[Frame, ...] = ()
    source: str = ""
    ident: Int = 0


class Header(BaseEvent, frozen=True, tag="header"):
    """First line of a process's recording."""

    data: HeaderData


class Probe(BaseEvent, frozen=True, tag="probe"):
    """A probe's state, when it changes; the last one counts."""

    data: ProbeData


class Gpu(BaseEvent, frozen=True, tag="gpu"):
    """GPU names."""

    data: GpuData


class ThreadStart(BaseEvent, frozen=True, tag="thread_start"):
    """A thread was started."""

    data: ThreadStartData


class ThreadEnd(BaseEvent, frozen=True, tag="thread_end"):
    """The event's own thread is about to end."""


class ThreadError(BaseEvent, frozen=True, tag="thread_error"):
    """A thread's error."""

    data: ThreadErrorData


class FutureRead(BaseEvent, frozen=True, tag="future_read"):
    """A failed future was read."""

    data: FutureReadData


class Wrapper(BaseEvent, frozen=True, tag="wrapper"):
    """A call of compiled code. ``count``: so many like it by now in this thread."""

    data: WrapperData


class Asked(BaseEvent, frozen=True, tag="asked"):
    """A thread asked the cache entries before a call (once for each combination)."""

    data: AskedData


class Eager(BaseEvent, frozen=True, tag="eager"):
    """A call of compiled code that ran eager; ``where`` is where the call was made."""

    data: EagerData


class Stance(BaseEvent, frozen=True, tag="stance"):
    """A thread set the stance, or set it back (thinned out)."""

    data: StanceData


class GuardMiss(BaseEvent, frozen=True, tag="guard_miss"):
    """A guard miss on the calling thread."""

    data: GuardMissData


class LockWait(BaseEvent, frozen=True, tag="lock_wait"):
    """A wait for dynamo's compile lock; recorded only when the lock was taken."""

    data: LockWaitData


class Compile(BaseEvent, frozen=True, tag="dynamo_compile"):
    """A dynamo compile; enter and exit share ``compile_id``."""

    data: CompileData


class CompileDetail(BaseEvent, frozen=True, tag="compile_detail"):
    """Cross-check of the two ways in which compiles are seen."""

    data: CompileDetailData


class Reset(BaseEvent, frozen=True, tag="reset"):
    """Dynamo was reset (the first of a thread, powers of two of those alike)."""

    data: ResetData


class FxTrace(BaseEvent, frozen=True, tag="fx_trace"):
    """A symbolic trace, during which the FX flag is set."""

    data: FxTraceData


class BackwardCompile(BaseEvent, frozen=True, tag="backward_compile"):
    """A backward graph compiled when backward first needed it."""

    data: BackwardCompileData


class Autograd(BaseEvent, frozen=True, tag="autograd"):
    """A thread of C++ met compiled code, as autograd's device threads do (once for each behalf)."""

    data: AutogradData


class Backward(BaseEvent, frozen=True, tag="backward"):
    """A thread called backward (its first, and every power of two)."""

    data: BackwardData


class CudaGraph(BaseEvent, frozen=True, tag="cuda_graph"):
    """A CUDA graph is being captured, or is replayed by another thread than before."""

    data: CudaGraphData


class Fork(BaseEvent, frozen=True, tag="fork"):
    """First event of a process that was forked while another thread held the compile lock."""

    data: ForkData


class Autotune(BaseEvent, frozen=True, tag="autotune"):
    """A call of an autotuned triton kernel tuned it (first per kind, and every power of two)."""

    data: AutotuneData


class DenseAttention(BaseEvent, frozen=True, tag="dense_attention"):
    """Dense attention ran (first per thread and kind, and every power of two)."""

    data: DenseAttentionData


class BlockMask(BaseEvent, frozen=True, tag="block_mask"):
    """A block mask is being built (first per thread, powers of two, and any during a compile)."""

    data: BlockMaskData


class IsCompiling(BaseEvent, frozen=True, tag="is_compiling"):
    """A thread took another's compile for its own (first per line and thread, powers of two)."""

    data: IsCompilingData


class Step(BaseEvent, frozen=True, tag="step"):
    """A step that the workload announced."""

    data: StepData


class Phase(BaseEvent, frozen=True, tag="phase"):
    """A phase that the workload announced, entered and left."""

    data: PhaseData


class Caches(BaseEvent, frozen=True, tag="caches"):
    """The cache of one compiled code object."""

    data: CachesData


class Invariants(BaseEvent, frozen=True, tag="invariants"):
    """Idle invariants, checked at the end."""

    data: InvariantsData


class LeftOut(BaseEvent, frozen=True, tag="left_out"):
    """Events were left out to bound the recording (written at powers of two and at the end)."""

    data: LeftOutData


class HoldPass(BaseEvent, frozen=True, tag="hold"):
    """The event's own thread passed a hold of the schedule."""

    data: HoldPassData


class Schedule(BaseEvent, frozen=True, tag="schedule"):
    """A schedule began or ended."""

    data: ScheduleData


class Memory(BaseEvent, frozen=True, tag="memory"):
    """What is in use on a device, now and then."""

    data: MemoryData


class MemoryPeak(BaseEvent, frozen=True, tag="memory_peak"):
    """The most that was in use: at a phase's end, after a dense call and at the program's end."""

    data: MemoryPeakData


class MemoryCap(BaseEvent, frozen=True, tag="memory_cap"):
    """A bound on memory was set."""

    data: MemoryCapData


class OutOfMemory(BaseEvent, frozen=True, tag="out_of_memory"):
    """A request for memory failed; ``where`` is where it was made."""

    data: OutOfMemoryData


class Said(BaseEvent, frozen=True, tag="said"):
    """A program's own output, or torch's, said it; only in recordings made from texts."""

    data: SaidData


class End(BaseEvent, frozen=True, tag="end"):
    """The interpreter ran its exit handlers: the program ended by itself."""

    data: EndData = EndData()


Event = (
    Header
    | Probe
    | Gpu
    | ThreadStart
    | ThreadEnd
    | ThreadError
    | FutureRead
    | Wrapper
    | Asked
    | Eager
    | Stance
    | GuardMiss
    | LockWait
    | Compile
    | CompileDetail
    | Reset
    | FxTrace
    | BackwardCompile
    | Autograd
    | Backward
    | CudaGraph
    | Fork
    | Autotune
    | DenseAttention
    | BlockMask
    | IsCompiling
    | Step
    | Phase
    | Caches
    | Invariants
    | LeftOut
    | HoldPass
    | Schedule
    | Memory
    | MemoryPeak
    | MemoryCap
    | OutOfMemory
    | Said
    | End
)
