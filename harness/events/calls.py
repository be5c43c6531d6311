"""What the events of compiled calls, their compiles and their fallbacks say."""

from typing import Literal

import msgspec

from harness.events.values import CacheEntry, Code, Context, Int, TensorInput


class WrapperData(msgspec.Struct, frozen=True, kw_only=True):
    """An entry to ``compile_wrapper``; cached calls are recorded only when a thread is looked at.

    A thread is looked at on its first call and for some calls after anything of note (a compile, a
    miss) happened in any thread. ``fx_flag``: dynamo saw the FX-tracing flag set, so this call
    raises or runs eager (``nested``). ``tracing_tids`` are the threads then inside an FX trace and
    ``compiling_tids`` those inside a dynamo compile. ``context`` comes with a thread's first call.
    ``stance``: the stance of ``torch.compiler.set_stance`` in force, empty for the default one,
    and ``stance_tid`` the thread that set it.
    """

    code: Code | None = None
    first: bool = False
    fx_flag: bool = False
    nested: Literal["", "raise", "eager"] = ""
    tracing_tids: tuple[Int, ...] = ()
    compiling_tids: tuple[Int, ...] = ()
    context: Context | None = None
    stance: str = ""
    stance_tid: Int | None = None
    count: Int = 1


class AnswerData(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the entry of a compile fits a call; ``guard``: what rejects it, as torch words it."""

    compile_id: str
    fits: bool
    guard: str = ""


class ArgumentData(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a call: one of the tensors, a plain ``value`` as code, or another's type.

    ``keyword``: it was given by this name; empty if by its place.
    """

    name: str
    kind: Literal["tensor", "value", "other"]
    text: str = ""
    keyword: str = ""


class AskedData(msgspec.Struct, frozen=True, kw_only=True):
    """The thread asked the ``entries`` entries of ``code`` whether one fits a call.

    Entries are asked, newest first, until one fits. ``ran``: the call that the thread is about to
    make; else one that another thread made. ``called``: module and global name by which the program
    knows the callable; empty if by none. ``compiling_tids``: other threads then inside a compile.
    Of a call that the thread is about to make: ``number`` of the question, and ``adding``, compile
    ids of other threads' compiles of ``code`` that were over but whose entries may not have been
    there yet.
    """

    code: Code
    context: Context
    dispatch_modes: tuple[str, ...] = ()
    stance: str = ""
    inputs: tuple[TensorInput, ...] = ()
    arguments: tuple[ArgumentData, ...] = ()
    called: tuple[str, ...] = ()
    ran: bool = True
    answers: tuple[AnswerData, ...] = ()
    entries: Int = 0
    compiling_tids: tuple[Int, ...] = ()
    number: Int = 0
    adding: tuple[str, ...] = ()


class EagerData(msgspec.Struct, frozen=True, kw_only=True):
    """A call of ``code`` neither hit an entry nor ran what a compile made: Python ran it.

    ``route``, and what ``detail`` and ``by_tid`` (a thread) then are:

    * ``recompile_limit``: the limit was hit by this call (torch's error).
    * ``run_only``: no entry fitted, and the limit was hit earlier (torch's error; who hit it).
    * ``suppressed_error``, ``unsupported``: this or an earlier compile failed, and
      ``suppress_errors`` is on or dynamo takes it for a graph break (the error; who compiled).
    * ``no_graph``: there was nothing to compile (torch's reason; who compiled).
    * ``stance``: the stance in force (its name; who set it).
    * ``dispatch_mode``: a mode of the calling thread (the modes' names; the thread itself).
    * ``skipped_for_mode``: no mode is on, but one was at an earlier call, and up to torch 2.13
      dynamo then leaves the code object to Python for good (its name; whose mode it was).
    * ``fx_flag``: the FX-tracing flag was set (nothing; who traced).
    * ``unknown``: none of these.

    Calls are followed only while their thread is looked at, so ``count``, of this thread's calls
    like it, is a lower bound. Written once the thread calls again, or ends; ``began_ns`` is when
    the call began.
    """

    code: Code
    route: str
    detail: str = ""
    by_tid: Int | None = None
    began_ns: Int = 0
    count: Int = 1


class StanceData(msgspec.Struct, frozen=True, kw_only=True):
    """What ``torch.compiler.set_stance`` set, for all threads of the process.

    ``backend``: of ``force_backend``, by name. ``count``: so many times by this thread.
    """

    stance: str
    skip_guards: bool = False
    backend: str = ""
    count: Int = 1


class GuardMissData(msgspec.Struct, frozen=True, kw_only=True):
    """No entry of ``code`` (as far as it is known) fitted the call. ``entries``: how many exist."""

    code: Code | None = None
    context: Context | None = None
    entries: Int | None = None
    count: Int = 1


class LockWaitData(msgspec.Struct, frozen=True, kw_only=True):
    """``owner_tid`` held the lock when the wait began."""

    lock: str
    owner_tid: Int | None = None


class CompileData(msgspec.Struct, frozen=True, kw_only=True):
    """One call of dynamo's ``_compile``.

    On enter: ``code``, ``context``, ``inputs``, ``entries`` (how many existed), ``limit`` (this
    thread's recompile_limit), ``owner`` (which object a method's call was of, by number; None: no
    method), ``dynamic`` (what ``torch.compile(dynamic=)`` was given; empty: not known). On exit:
    ``ok``, ``reasons`` (which guard of which entry rejected the call, as torch words it), ``entry``
    (the variant made), ``error``, ``limit_hit``, ``other_backends`` (compile ids of the entries
    that were made for another backend; None: not known), ``waiting`` (numbers of other threads'
    questions, see ``AskedData``, whose calls may have been looked up only after the entry was
    there).
    ``before``: an entry that was there when the watch began, in the thread that began it; its own
    compile was not seen. It has ``context`` as far as its guards tell, and ``entry``.
    """

    code: Code
    context: Context | None = None
    inputs: tuple[TensorInput, ...] = ()
    entries: Int | None = None
    limit: Int | None = None
    owner: Int | None = None
    dynamic: Literal["", "automatic", "on", "off"] = ""
    ok: bool | None = None
    reasons: tuple[str, ...] = ()
    entry: CacheEntry | None = None
    error: str = ""
    limit_hit: bool = False
    before: bool = False
    other_backends: tuple[str, ...] | None = None
    waiting: tuple[Int, ...] = ()


class CompileDetailData(msgspec.Struct, frozen=True, kw_only=True):
    """How many ``compilation_metrics`` records of forward compiles the trace log gave so far.

    Written at the end (and when they first disagree): ``compiles`` calls of ``_compile`` that
    ended by then. The two must agree, or the recording misses compiles.
    """

    metrics: Int
    compiles: Int


class FxTraceData(msgspec.Struct, frozen=True, kw_only=True):
    """``tracer`` is the tracer's class; ``in_compile``: on behalf of a dynamo compile."""

    tracer: str
    in_compile: bool = False
    count: Int = 1


class BackwardCompileData(msgspec.Struct, frozen=True, kw_only=True):
    """A lazy backward compile; ``compile_id`` is its forward's.

    ``behalf_tids``: the threads then inside a backward call. One thread is the caller; several
    are candidates, since autograd's device thread serves them all.
    """

    behalf_tids: tuple[Int, ...] = ()
    ok: bool | None = None
    error: str = ""


class AutogradData(msgspec.Struct, frozen=True, kw_only=True):
    """``device``: the thread's current one, as ``cuda:0``; empty where CUDA is not initialised.

    ``behalf_tids``: the threads then inside a backward call, on whose behalf it works.
    """

    device: str = ""
    behalf_tids: tuple[Int, ...] = ()


class BackwardData(msgspec.Struct, frozen=True, kw_only=True):
    """``count`` backward calls were made by this thread by now.

    ``error``: the last of them failed with it; ``in_backward_tids``: other threads then inside a
    backward call.
    """

    count: Int = 1
    error: str = ""
    in_backward_tids: tuple[Int, ...] = ()


class DenseAttentionData(msgspec.Struct, frozen=True, kw_only=True):
    """``fallback``: dense attention reached outside a compiled frame.

    ``reference``: the operator's own dense kernel inside a compiled frame, as ``aot_eager`` runs
    it on purpose. ``scores_bytes`` is B * H * Q * KV times the element size.
    """

    kind: Literal["fallback", "reference"]
    shape: tuple[Int, ...] = ()
    dtype: str = ""
    device: str = ""
    scores_bytes: Int = 0
    count: Int = 1


class BlockMaskData(msgspec.Struct, frozen=True, kw_only=True):
    """``compiling_tids``: other threads then inside a dynamo compile."""

    compiling_tids: tuple[Int, ...] = ()
    count: Int = 1
    error: str = ""


class CachesData(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one code object at the end of the program, ``left_out`` of them not told."""

    code: Code
    entries: tuple[CacheEntry, ...] = ()
    left_out: Int = 0


class IsCompilingData(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that compiles and traces nothing read ``torch.compiler.is_compiling()`` as True.

    In code outside torch. ``compiling_tids``: the threads that compiled. ``count``: so many times
    on this line.
    """

    compiling_tids: tuple[Int, ...] = ()
    count: Int = 1


class ResetData(msgspec.Struct, frozen=True, kw_only=True):
    """A call of ``torch._dynamo.reset``, from enter to exit.

    ``calling_tids``: other threads that were inside a call of compiled code at that moment;
    ``compiling_tids``: those inside a dynamo compile. ``error``: of the exit, what it raised.
    """

    calling_tids: tuple[Int, ...] = ()
    compiling_tids: tuple[Int, ...] = ()
    error: str = ""


class InvariantsData(msgspec.Struct, frozen=True, kw_only=True):
    """State that must hold when no thread compiles or traces; None: could not be read."""

    fx_flag_clear: bool | None = None
    is_compiling_clear: bool | None = None
    module_call_original: bool | None = None
    patcher_clear: bool | None = None
    current_meta_empty: bool | None = None
    busy_tids: tuple[Int, ...] = ()
