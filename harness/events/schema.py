"""Events as msgspec structs: one JSON object a line, told apart by ``point``.

The child writes these lines with the standard library alone (``harness.child.recorder``), so this
file is the one description of the format and the tests hold the child to it. Fields that a later
version may add are optional; unknown fields are ignored, so an old reader reads a new recording.
"""

from typing import Literal

import msgspec

from harness.events.values import (
    CacheEntry,
    Code,
    Context,
    ErrorLink,
    Frame,
    TensorInput,
)

SCHEMA_VERSION = 1

Edge = Literal["enter", "exit", "instant"]


class BaseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="point"):
    """What every line has. ``t_ns`` is CLOCK_MONOTONIC; ``tid`` is the native thread id."""

    t_ns: int
    seq: int
    pid: int
    tid: int
    thread: str
    edge: Edge = "instant"
    phase: str | None = None
    compile_id: str | None = None
    where: tuple[Frame, ...] = ()


class HeaderData(msgspec.Struct, frozen=True, kw_only=True):
    """Versions are what is installed for the child's interpreter; empty if not found."""

    schema: int
    harness: str
    python: str
    torch: str
    triton: str
    cuda: str
    platform: str
    cpus: int
    argv: tuple[str, ...]
    started_unix: float
    compile_detail: bool
    disabled_probes: tuple[str, ...] = ()
    cache_dir: str = ""
    cache_state: Literal["cold", "kept"] = "cold"
    job_id: str = ""
    env: dict[str, str] = {}


class Header(BaseEvent, frozen=True, tag="header"):
    """First line of a process's recording."""

    data: HeaderData


class ProbeData(msgspec.Struct, frozen=True, kw_only=True):
    """``live``, or why not. ``idle``: the module that it patches was never imported."""

    name: str
    state: Literal["live", "missing", "failed", "disabled", "idle", "conflict"]
    reason: str = ""


class Probe(BaseEvent, frozen=True, tag="probe"):
    """A probe's state, when it changes; the last one counts."""

    data: ProbeData


class GpuData(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that torch sees, once the program has initialised CUDA."""

    names: tuple[str, ...]


class Gpu(BaseEvent, frozen=True, tag="gpu"):
    """GPU names."""

    data: GpuData


class ThreadStartData(msgspec.Struct, frozen=True, kw_only=True):
    """``child_tid`` was started by the event's own thread; ``where`` is the creation stack."""

    child_tid: int
    name: str
    daemon: bool = False


class ThreadStart(BaseEvent, frozen=True, tag="thread_start"):
    """A thread was started."""

    data: ThreadStartData


class ThreadEnd(BaseEvent, frozen=True, tag="thread_end"):
    """The event's own thread is about to end."""


class ThreadErrorData(msgspec.Struct, frozen=True, kw_only=True):
    """An exception that ended a thread, the program or a future's call.

    ``via``: ``main`` (the program's uncaught exception), ``thread`` (a thread's), ``future`` (kept
    in a ``concurrent.futures.Future``; ``future`` is its number). ``chain[0]`` is the exception.
    """

    via: Literal["main", "thread", "future"]
    chain: tuple[ErrorLink, ...]
    future: int | None = None


class ThreadError(BaseEvent, frozen=True, tag="thread_error"):
    """A thread's error."""

    data: ThreadErrorData


class FutureReadData(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asked the future for its result or exception, so its error was seen."""

    future: int


class FutureRead(BaseEvent, frozen=True, tag="future_read"):
    """A failed future was read."""

    data: FutureReadData


class WrapperData(msgspec.Struct, frozen=True, kw_only=True):
    """An entry to ``compile_wrapper``; cached calls are recorded only when a thread is looked at.

    A thread is looked at on its first call and for some calls after anything of note (a compile, a
    miss) happened in any thread. ``fx_flag``: dynamo saw the FX-tracing flag set, so this call
    raises or runs eager (``nested``). ``tracing_tids`` are the threads then inside an FX trace and
    ``compiling_tids`` those inside a dynamo compile. ``context`` comes with a thread's first call.
    """

    code: Code | None = None
    first: bool = False
    fx_flag: bool = False
    nested: Literal["", "raise", "eager"] = ""
    tracing_tids: tuple[int, ...] = ()
    compiling_tids: tuple[int, ...] = ()
    context: Context | None = None
    count: int = 1


class Wrapper(BaseEvent, frozen=True, tag="wrapper"):
    """A call of compiled code. ``count``: so many like it by now in this thread."""

    data: WrapperData


class GuardMissData(msgspec.Struct, frozen=True, kw_only=True):
    """No entry of ``code`` (as far as it is known) fitted the call. ``entries``: how many exist."""

    code: Code | None = None
    context: Context | None = None
    entries: int | None = None
    count: int = 1


class GuardMiss(BaseEvent, frozen=True, tag="guard_miss"):
    """A guard miss on the calling thread."""

    data: GuardMissData


class LockWaitData(msgspec.Struct, frozen=True, kw_only=True):
    """``owner_tid`` held the lock when the wait began."""

    lock: str
    owner_tid: int | None = None


class LockWait(BaseEvent, frozen=True, tag="lock_wait"):
    """A wait for dynamo's compile lock; recorded only when the lock was taken."""

    data: LockWaitData


class CompileData(msgspec.Struct, frozen=True, kw_only=True):
    """One call of dynamo's ``_compile``.

    On enter: ``code``, ``context``, ``inputs``, ``entries`` (how many existed), ``limit`` (this
    thread's recompile_limit). On exit: ``ok``, ``reasons`` (which guard of which entry rejected
    the call, as torch words it), ``entry`` (the variant made), ``error``, ``limit_hit``.
    """

    code: Code
    context: Context | None = None
    inputs: tuple[TensorInput, ...] = ()
    entries: int | None = None
    limit: int | None = None
    ok: bool | None = None
    reasons: tuple[str, ...] = ()
    entry: CacheEntry | None = None
    error: str = ""
    limit_hit: bool = False


class Compile(BaseEvent, frozen=True, tag="dynamo_compile"):
    """A dynamo compile; enter and exit share ``compile_id``."""

    data: CompileData


class CompileDetailData(msgspec.Struct, frozen=True, kw_only=True):
    """How many ``compilation_metrics`` records of forward compiles the trace log gave so far.

    Written at the end (and when they first disagree): ``compiles`` calls of ``_compile`` that
    ended by then. The two must agree, or the recording misses compiles.
    """

    metrics: int
    compiles: int


class CompileDetail(BaseEvent, frozen=True, tag="compile_detail"):
    """Cross-check of the two ways in which compiles are seen."""

    data: CompileDetailData


class FxTraceData(msgspec.Struct, frozen=True, kw_only=True):
    """``tracer`` is the tracer's class; ``in_compile``: on behalf of a dynamo compile."""

    tracer: str
    in_compile: bool = False
    count: int = 1


class FxTrace(BaseEvent, frozen=True, tag="fx_trace"):
    """A symbolic trace, during which the FX flag is set."""

    data: FxTraceData


class BackwardCompileData(msgspec.Struct, frozen=True, kw_only=True):
    """A lazy backward compile; ``compile_id`` is its forward's.

    ``behalf_tids``: the threads then inside a backward call. One thread is the caller; several
    are candidates, since autograd's device thread serves them all.
    """

    behalf_tids: tuple[int, ...] = ()
    ok: bool | None = None
    error: str = ""


class BackwardCompile(BaseEvent, frozen=True, tag="backward_compile"):
    """A backward graph compiled when backward first needed it."""

    data: BackwardCompileData


class BackwardData(msgspec.Struct, frozen=True, kw_only=True):
    """``count`` backward calls were made by this thread by now."""

    count: int = 1


class Backward(BaseEvent, frozen=True, tag="backward"):
    """A thread called backward (its first, and every power of two)."""

    data: BackwardData


class DenseAttentionData(msgspec.Struct, frozen=True, kw_only=True):
    """``fallback``: dense attention reached outside a compiled frame.

    ``reference``: the operator's own dense kernel inside a compiled frame, as ``aot_eager`` runs
    it on purpose. ``scores_bytes`` is B * H * Q * KV times the element size.
    """

    kind: Literal["fallback", "reference"]
    shape: tuple[int, ...] = ()
    dtype: str = ""
    scores_bytes: int = 0
    count: int = 1


class DenseAttention(BaseEvent, frozen=True, tag="dense_attention"):
    """Dense attention ran (first per thread and kind, and every power of two)."""

    data: DenseAttentionData


class BlockMaskData(msgspec.Struct, frozen=True, kw_only=True):
    """``compiling_tids``: other threads then inside a dynamo compile."""

    compiling_tids: tuple[int, ...] = ()
    count: int = 1
    error: str = ""


class BlockMask(BaseEvent, frozen=True, tag="block_mask"):
    """A block mask is being built (first per thread, powers of two, and any during a compile)."""

    data: BlockMaskData


class StepData(msgspec.Struct, frozen=True, kw_only=True):
    """One training step of the event's thread."""

    step: int
    tokens: int = 0
    seconds: float = 0.0


class Step(BaseEvent, frozen=True, tag="step"):
    """A step that the workload announced."""

    data: StepData


class PhaseData(msgspec.Struct, frozen=True, kw_only=True):
    """A phase's name, as the workload gave it."""

    name: str


class Phase(BaseEvent, frozen=True, tag="phase"):
    """A phase that the workload announced, entered and left."""

    data: PhaseData


class CachesData(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one code object at the end of the program, ``left_out`` of them not told."""

    code: Code
    entries: tuple[CacheEntry, ...] = ()
    left_out: int = 0


class Caches(BaseEvent, frozen=True, tag="caches"):
    """The cache of one compiled code object."""

    data: CachesData


class InvariantsData(msgspec.Struct, frozen=True, kw_only=True):
    """State that must hold when no thread compiles or traces; None: could not be read."""

    fx_flag_clear: bool | None = None
    is_compiling_clear: bool | None = None
    module_call_original: bool | None = None
    patcher_clear: bool | None = None
    current_meta_empty: bool | None = None
    busy_tids: tuple[int, ...] = ()


class Invariants(BaseEvent, frozen=True, tag="invariants"):
    """Idle invariants, checked at the end."""

    data: InvariantsData


class End(BaseEvent, frozen=True, tag="end"):
    """The interpreter ran its exit handlers: the program ended by itself."""


Event = (
    Header
    | Probe
    | Gpu
    | ThreadStart
    | ThreadEnd
    | ThreadError
    | FutureRead
    | Wrapper
    | GuardMiss
    | LockWait
    | Compile
    | CompileDetail
    | FxTrace
    | BackwardCompile
    | Backward
    | DenseAttention
    | BlockMask
    | Step
    | Phase
    | Caches
    | Invariants
    | End
)
