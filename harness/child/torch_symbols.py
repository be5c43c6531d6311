"""Every private symbol of torch that the probes touch, named once, with the versions it exists in.

A symbol is looked up when a probe is installed and never earlier: nothing here imports torch or
any part of it. A symbol that is not there raises ``Unavailable`` with its name and the versions
that have it, and the probe is then reported as missing. Versions were read in the wheels of 2.11.0,
2.13.0 and 2.14.1 and run on all three; an open end means that no version without it is known.
Those of triton, which torch comes with, are here too; they were read in 3.6.0 and 3.9.0.
"""

import functools
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol, TypeVar

from .in_process.in_place import answer_instead, copy_of
from .probes import Unavailable

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Symbol:
    """A name in a module of torch, or of triton.

    Attributes:
        module: the module that holds it, which is in ``sys.modules`` when the symbol is used.
        name: attribute path in the module, such as ``Tracer.trace``.
        since: first version known to have it.
        until: last version that has it; empty if the newest one read does.
    """

    module: str
    name: str
    since: str = "2.11"
    until: str = ""

    def get(self) -> Any:
        """Return the object. Raises Unavailable if this torch has no such name."""
        owner, attribute = self._owner()
        try:
            return getattr(owner, attribute)
        except AttributeError:
            raise Unavailable(str(self)) from None

    def find(self, default: object = None) -> Any:
        """Return the object, or ``default`` if this torch has no such name."""
        try:
            return self.get()
        except Unavailable:
            return default

    def replace(self, new: object) -> None:
        """Put ``new`` in its place. Raises Unavailable if there is nothing to replace."""
        self.get()
        owner, attribute = self._owner()
        setattr(owner, attribute, new)

    def __str__(self) -> str:
        package = self.module.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", "not imported")
        last = f" to {self.until}" if self.until else ""
        return f"{self.module}.{self.name} ({package} {self.since}{last}; this is {version})"

    def _owner(self) -> tuple[Any, str]:
        owner: Any = sys.modules.get(self.module)
        if owner is None:
            raise Unavailable(f"{self.module} is not imported: no {self}")
        *path, attribute = self.name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        return owner, attribute


_FX = "torch.fx._symbolic_trace"
_EVAL = "torch._C._dynamo.eval_frame"
_CONVERT = "torch._dynamo.convert_frame"
_CONFIG = "torch._dynamo.config"

FX_TRACING = Symbol(_FX, "is_fx_symbolic_tracing")
FX_FLAG = Symbol(_FX, "_is_fx_tracing_flag", until="2.13")  # one flag for the process
FX_FLAG_OF_THREAD = Symbol(_FX, "_get_is_fx_tracing", since="2.14")  # one flag a thread
FX_TRACE = Symbol(_FX, "Tracer.trace")
FX_PATCHER = Symbol(_FX, "CURRENT_PATCHER")
FX_MODULE_CALL = Symbol(_FX, "_orig_module_call")
FX_MODULE_GETATTR = Symbol(_FX, "_orig_module_getattr")
FX_CURRENT_META = Symbol("torch.fx.traceback", "current_meta")
READ_IS_COMPILING = Symbol("torch.compiler", "is_compiling")
COMPILE_SESSION = Symbol("torch.compiler", "_compile_session_context", since="2.13")
IS_COMPILING = Symbol("torch.compiler", "_is_compiling_flag")  # held by compiles since 2.13

THREAD_STORAGE = Symbol("torch._guards", "_TLS")  # compile_wrapper reads it on every call
COMPILE = Symbol(_CONVERT, "_compile")
COMPILED_CODES = Symbol(_CONVERT, "input_codes.seen")  # weak references, kept for reset()
CALL_BACKEND = Symbol("torch._dynamo.output_graph", "OutputGraph.call_user_compiler")
RUN_GRAPH = Symbol("torch.fx.experimental.symbolic_shapes", "PropagateUnbackedSymInts.run")
COMPILE_LOCK = Symbol(_CONVERT, "compile_lock")
RESET = Symbol("torch._dynamo", "reset")
METRICS_CONTEXT = Symbol("torch._dynamo.utils", "get_metrics_context")
SKIP_FILES_ADD = Symbol("torch._dynamo.trace_rules", "add")
SKIP_FILES_CHECK = Symbol("torch._dynamo.trace_rules", "check_file")
DYNAMO_CONFIG = Symbol(_CONFIG, "_config")
RECOMPILE_LIMIT = Symbol(_CONFIG, "recompile_limit")
SUPPRESS_ERRORS = Symbol(_CONFIG, "suppress_errors")
COMPILE_DURING_FX_TRACE = Symbol(_CONFIG, "force_compile_during_fx_trace")
ERROR_DURING_FX_TRACE = Symbol(_CONFIG, "error_on_nested_fx_trace")
CONFIG_UNSET = Symbol("torch.utils._config_module", "_UNSET_SENTINEL")
TRACE_STRUCTURED = Symbol("torch._logging._internal", "trace_structured")
SET_EXEC_STRATEGY = Symbol(_EVAL, "set_code_exec_strategy")
EXEC_STRATEGY = Symbol(_EVAL, "_FrameExecStrategy")
EXEC_SKIP = Symbol(_EVAL, "_FrameAction.SKIP")
SET_GUARD_HOOK = Symbol(_EVAL, "set_guard_complete_hook")
CACHE_ENTRIES = Symbol(_EVAL, "_debug_get_cache_entry_list")
GLOBAL_STATE = Symbol("torch._C._dynamo.guards", "GlobalStateGuard")
INSTALL_CALLBACKS = Symbol("torch._dynamo.callback", "CompilationCallbackHandler.install_callbacks")
LAZY_BACKWARD = Symbol("torch._dynamo.callback", "CallbackTrigger.LAZY_BACKWARD")

STANCE = Symbol("torch._dynamo.eval_frame", "_stance")  # one for the process
SET_STANCE = Symbol("torch._dynamo.eval_frame", "_set_stance")
SET_STANCE_BY_NAME = Symbol("torch._dynamo.decorators", "_set_stance")  # imported by value
_MODES = "torch.utils._python_dispatch"
PUSH_MODE = Symbol(_MODES, "_push_mode")
ANY_DISPATCH_MODE = Symbol(_MODES, "any_torch_dispatch_mode_on_stack")
DISPATCH_MODES = Symbol(_MODES, "_get_current_dispatch_mode_stack")

CAPTURE_BEGIN = Symbol("torch.cuda.graphs", "CUDAGraph.capture_begin")
CAPTURE_END = Symbol("torch.cuda.graphs", "CUDAGraph.capture_end")
REPLAY_GRAPH = Symbol("torch.cuda.graphs", "CUDAGraph.replay")

_AUTOTUNER = "triton.runtime.autotuner"
AUTOTUNER_RUN = Symbol(_AUTOTUNER, "Autotuner.run", since="3.6")
AUTOTUNER_BENCH = Symbol(_AUTOTUNER, "Autotuner._bench", since="3.6")
AUTOTUNER_PRUNE = Symbol(_AUTOTUNER, "Autotuner.prune_configs", since="3.6")

RUN_BACKWARD = Symbol("torch.autograd.graph", "_engine_run_backward")
RUN_BACKWARD_BY_NAME = Symbol("torch.autograd", "_engine_run_backward")  # imported by value
MATH_ATTENTION = Symbol("torch._higher_order_ops.flex_attention", "math_attention")
DENSE_TO_ORDERED = Symbol("torch.nn.attention.flex_attention", "_dense_to_ordered")
FUNCTION_MODES = Symbol("torch.overrides", "_get_current_function_mode_stack")
DISABLE_TORCH_FUNCTION = Symbol("torch._C", "DisableTorchFunction")
DISPATCH_KEYS = Symbol("torch._C", "_dispatch_keys")

#: The module whose import ends with dynamo able to run frames.
EVAL_FRAME_MODULE = "torch._dynamo.eval_frame"
#: Programs that torch starts as helpers: nothing of what they do is the watched program's doing.
COMPILE_WORKERS = (
    "torch/_inductor/compile_worker/__main__.py",
    "torch/_inductor/autotune_process.py",
    "torch._inductor.autotune_process",
    "torch._inductor.compile_worker",
    "torch/_inductor/__autotune_main__.py",
    "torch._inductor.__autotune_main__",
)
#: Torch's structured trace log: a record per event, on the thread that it happened on.
TRACE_LOGGER = "torch.__trace"
#: Where what ``torch.compile`` returns keeps what it was given.
ORIGINAL_CALLABLE = "_torchdynamo_orig_callable"
ORIGINAL_MODULE = "_orig_mod"
ASKED_DYNAMIC = "_dynamic"  # where a compile_wrapper's context keeps torch.compile(dynamic=)
#: Where a callback of dynamo's keeps the backend that it was made for.
ORIGINAL_BACKEND = "_torchdynamo_orig_backend"
#: Where an autotuner of triton's keeps a call's arguments by name, and the kernel as it is written.
AUTOTUNER_ARGUMENTS = "nargs"
AUTOTUNER_FUNCTION = "base_fn"
#: The attribute by which dynamo is told to trace another function in a wrapper's stead.
INLINE_INSTEAD = "_torchdynamo_inline"

INIT_CUDA_CALL = Symbol("torch.cuda", "_lazy_call")  # runs it once CUDA is initialised
OOM_OBSERVER = Symbol("torch._C", "_cuda_attach_out_of_memory_observer")

#: What ``_dense_to_ordered`` calls inside its annotation.
ANNOTATED_CALL = "argsort"
#: Parameters of create_mask and create_block_mask.
MASK_SIZES = ("B", "H", "Q_LEN", "KV_LEN")

LIMIT_EXCEEDED = "Dynamo recompile limit exceeded"
# Failed compiles that dynamo makes nothing of but to run the frame eager, and those that it raises
# whatever is set (torch/_dynamo/convert_frame.py, ConvertFrame.__call__).
SOFT_FAILURES = frozenset({"Unsupported", "UserError"})
HARD_FAILURES = frozenset(
    {"UncapturedHigherOrderOpError", "ResumePrologueTracingError", "FailOnRecompileLimitHit"}
)
#: What ``stance`` calls the default stance with guards skipped.
SKIP_GUARDS = "skip_guard_eval_unsafe"
# Tensors that stand for others while torch traces: nothing is computed.
FAKE_TENSORS = frozenset({"FakeTensor", "FunctionalTensor"})


class Listener(Protocol):
    """Who is told of the calls of compiled code; see the wrapper probe."""

    def look(self, frame: FrameType) -> None:
        """A call from ``frame`` that has to be looked at."""

    def rest(self) -> None:
        """Some calls later: is anybody left to be looked at?"""

    def flagged(self, frame: FrameType) -> None:
        """A call from ``frame`` that torch answers with yes."""


#: Answers the question of a call's frame.
Asked = Callable[[FrameType], bool]


class _Mine(threading.local):
    """The epoch in which the calling thread needs to be looked at no more."""

    epoch: object = None


# What follows is asked by each call of compiled code. Globals of a module are the cheapest state
# that there is: a thread's own, an object's or a closure's cost two to six times as much there. So
# the thread's own is looked up only while some thread is left to be looked at.
_calm = False
_mine = _Mine()
_epoch = object()
_CALLS_BETWEEN = 256
_calls_left = _CALLS_BETWEEN
_listener: Listener
_asked: Callable[[], bool]
_fx: Any


def listen(
    listener: Listener,
    around: Callable[[FrameType, Asked], bool] | None = None,
    *,
    in_place: bool = False,
) -> None:
    """Put a question with a listener in the place of ``is_fx_symbolic_tracing``.

    ``around`` is called for each question instead, with the frame that asks and a function that
    answers it and tells the listener. ``in_place``: by ``answer_instead``; each call then takes the
    slow path. Raises Unavailable if this torch has none.
    """
    global _listener, _asked, _fx
    if in_place:
        _asked, _listener = copy_of(FX_TRACING.get()), listener
        begin_epoch()
        answer_instead(FX_TRACING.get(), lambda: _answer(sys._getframe(2)))  # noqa: SLF001
        return
    _asked, _fx, _listener = FX_TRACING.get(), sys.modules[_FX], listener
    question = _of_thread if FX_FLAG.find() is None else _of_process
    if around is not None:
        question = _passed_on(around)
    FX_TRACING.replace(functools.update_wrapper(question, _asked))


def _passed_on(around: Callable[[FrameType, Asked], bool]) -> Callable[[], bool]:
    def is_fx_symbolic_tracing() -> bool:
        return around(sys._getframe(1), _answer)  # noqa: SLF001

    return is_fx_symbolic_tracing


def begin_epoch() -> object:
    """Have every thread's next calls looked at; return what stands for the new epoch."""
    global _epoch, _calm  # noqa: PLW0603 - a module's global is the cheapest to read
    _epoch = begun = object()
    _calm = False
    return begun


def epoch() -> object:
    """What stands for the present epoch; compared by identity, so two never are the same."""
    return _epoch


def settle(epoch: object) -> None:
    """Have the calling thread looked at no more in ``epoch``, if that is still the present one."""
    _mine.epoch = epoch


def set_calm(calm: bool) -> None:  # noqa: FBT001 - it is the value that counts
    """Whether no call of any thread has to be looked at for now."""
    global _calm  # noqa: PLW0603
    _calm = calm


def _of_process() -> bool:
    global _calls_left  # noqa: PLW0603
    if not _calm:
        if _mine.epoch is not _epoch:
            return _answer(sys._getframe(1))  # noqa: SLF001 - the caller tells what is called
        _calls_left -= 1  # a step lost to another thread does no harm
        if _calls_left < 0:
            _calls_left = _CALLS_BETWEEN
            _listener.rest()
    # The original is "the flag is set, and nothing compiles": no need to ask while it is clear.
    if _fx._is_fx_tracing_flag:  # noqa: SLF001 - symbols.FX_FLAG
        return _answer(sys._getframe(1))  # noqa: SLF001
    return False


def _of_thread() -> bool:
    global _calls_left  # noqa: PLW0603
    if not _calm:
        if _mine.epoch is not _epoch:
            return _answer(sys._getframe(1))  # noqa: SLF001
        _calls_left -= 1
        if _calls_left < 0:
            _calls_left = _CALLS_BETWEEN
            _listener.rest()
    return _asked() and _answer(sys._getframe(1))  # noqa: SLF001


def _answer(frame: FrameType) -> bool:
    if _mine.epoch is not _epoch:
        _listener.look(frame)
    tracing = _asked()
    if tracing:
        _listener.flagged(frame)
    return tracing


def stands_for(original: F, wrapper: Callable[..., Any]) -> F:
    """Make dynamo trace ``original`` wherever it would trace ``wrapper``; return the wrapper.

    Dynamo follows the attribute for wrappers that ``torch.jit`` and ``torch.compile`` make.
    """
    setattr(wrapper, INLINE_INSTEAD, original)
    return wrapper  # type: ignore[return-value]


def nested_outcome() -> str:
    """What a compiled call does while the FX flag is set: ``raise``, ``eager``; empty: compile."""
    if COMPILE_DURING_FX_TRACE.get():
        return ""
    return "raise" if ERROR_DURING_FX_TRACE.get() else "eager"


def config_overrides() -> dict[str, Any]:
    """``torch._dynamo.config`` values that differ from their defaults in the calling thread.

    Up to torch 2.11 an override is process-wide, from 2.12 on it is a context variable's value,
    which a new thread does not inherit.
    """
    entries, unset = DYNAMO_CONFIG.get(), CONFIG_UNSET.get()
    values: dict[str, Any] = {}
    for name, entry in list(entries.items()):
        value = entry.user_override
        if isinstance(value, ContextVar):
            value = value.get()
        if value is not unset and value != entry.default:
            values[name] = value
    return values


def config_is_of_process() -> bool:
    """Whether what one thread sets in ``torch._dynamo.config`` holds for all: up to torch 2.11."""
    entries = list(DYNAMO_CONFIG.get().values())
    return not any(isinstance(entry.user_override, ContextVar) for entry in entries)


def stance() -> tuple[str, object]:
    """Name of the stance in force, which is one for the process, and the stance itself.

    The name is empty for the default one; with ``skip_guard_eval_unsafe`` it has that option's.
    """
    found = STANCE.find()
    if found is None:
        return "", None
    if found.stance != "default":
        return str(found.stance), found
    return SKIP_GUARDS if found.skip_guard_eval_unsafe else "", found


def innermost_backend(callback: object) -> object:
    """The backend whose entries a call with this callback looks at; None if it cannot be told.

    As ``get_backend`` of ``torch/csrc/dynamo/extra_state.cpp`` finds it.
    """
    found = None
    while callback is not None and (callback := getattr(callback, ORIGINAL_BACKEND, None)):
        found = callback
    return found


def dispatch_modes() -> list[str]:
    """Names of the calling thread's dispatch modes for which dynamo leaves a call to Python."""
    if not ANY_DISPATCH_MODE.get()():
        return []
    modes = DISPATCH_MODES.get()()
    return [type(mode).__name__ for mode in modes if not mode.is_infra_mode()]
