"""Tells torch's own code objects, calls and errors from the program's."""

import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from . import torch_files
from . import torch_symbols as symbols

_MAX_DEPTH = 1000
"""So many callers of a frame are looked at."""


def is_compile_wrapper(code: CodeType) -> bool:
    """Whether a frame of ``code`` is the function that ``torch.compile`` returns."""
    return code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py")


def compiled_function(frame: FrameType) -> Any:
    """The function that a ``compile_wrapper`` frame is about to run."""
    return frame.f_locals.get("fn")


def compile_wrapper_around(frame: FrameType | None) -> FrameType | None:
    """The nearest ``compile_wrapper`` frame among ``frame`` and its callers, if there is one."""
    for _ in range(_MAX_DEPTH):
        if frame is None or is_compile_wrapper(frame.f_code):
            return frame
        frame = frame.f_back
    return None


def asked_dynamic(frame: FrameType) -> str:
    """What ``torch.compile(dynamic=)`` was given for the call that ``frame`` is inside of.

    ``on``, ``off``, ``automatic`` (None, or nothing); empty if it cannot be told. Of calls inside
    each other the innermost counts that was given one, since each sets it for what is inside.
    """
    found, wrapper = "", compile_wrapper_around(frame)
    while wrapper is not None:
        context = wrapper.f_locals.get("self")
        if not hasattr(context, symbols.ASKED_DYNAMIC):
            return ""
        given = getattr(context, symbols.ASKED_DYNAMIC)
        if given is not None:
            return "on" if given else "off"
        found, wrapper = "automatic", compile_wrapper_around(wrapper.f_back)
    return found


def called_module_function(frame: FrameType) -> Any:
    """The function that a frame of ``nn.Module``'s call machinery is about to run, or None."""
    code = frame.f_code
    if code.co_name in torch_files.MODULE_CALLS and _in_torch(code, torch_files.MODULE_FOLDERS):
        return _forward_of(frame.f_locals.get("self"))
    return None


def code_of(function: Any) -> tuple[CodeType | None, Any]:
    """Return the code object that dynamo compiles for ``function``, and whom it stands in for.

    The second is None but for functions and callables that dynamo cannot compile as they are
    (builtins, callable objects, modules of ``torch.nn``): their calls go through one shared code
    object, ``inner`` of ``torch._dynamo.external_utils.wrap_inline``, in a closure per function.
    """
    function = function_of(function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        return None, None
    if not is_stand_in(code):
        return code, None
    try:
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        return code, stand_in_target(cells["fn"].cell_contents)
    except (KeyError, ValueError):  # another closure than the one known, or an empty cell
        return code, None


def function_of(function: Any) -> Any:
    """The function, or bound method, whose frame dynamo compiles for a call of ``function``."""
    owner = getattr(function, "__self__", None)
    if owner is not None and getattr(function, "__name__", "") in (
        *torch_files.MODULE_CALLS,
        "__call__",
    ):
        return _forward_of(owner) or function
    return function


@dataclass(frozen=True, slots=True)
class Wanted:
    """A frame that dynamo is about to compile.

    Attributes:
        code: its code object.
        target: whom that stands in for (see ``code_of``).
        missed: it has cache entries, none of which fitted.
    """

    code: CodeType
    target: Any
    missed: bool


def wanted_compile(caller: FrameType) -> Wanted | None:
    """What dynamo wants to compile where ``caller`` takes the compile lock; None if nothing.

    ``CatchErrorsWrapper.__call__`` of ``torch._dynamo.convert_frame`` is what dynamo calls for a
    frame that no entry fits: with the frame and the first of its entries, which is None if it has
    none.
    """
    if caller.f_code.co_name != "__call__":
        return None
    variables = caller.f_locals
    frame: Any = variables.get("frame")
    code = getattr(frame, "f_code", None)
    if not isinstance(code, CodeType) or "cache_entry" not in variables:
        return None
    target = None
    if is_stand_in(code) and "fn" in frame.f_locals:
        target = stand_in_target(frame.f_locals["fn"])
    return Wanted(code, target, variables["cache_entry"] is not None)


def is_stand_in(code: CodeType) -> bool:
    """Whether ``code`` is the one that ``wrap_inline``'s wrappers share."""
    return code.co_name == "inner" and _in_torch(
        code,
        (os.path.join("_dynamo", "external_utils.py"),),  # noqa: PTH118
    )


def stand_in_target(wrapped: Any) -> Any:
    """What ``wrap_inline`` wrapped: of a bound method of a module, the module."""
    owner = getattr(wrapped, "__self__", None)
    return owner if hasattr(owner, "forward") else wrapped


def is_internal(code: CodeType) -> bool:
    """Whether torch compiles ``code`` for its own use, as uncompiled ``flex_attention`` does.

    ``flex_attention`` and ``create_block_mask`` themselves, the modules of ``torch.nn`` and what
    the transforms of ``torch.func`` return are the program's own when it compiles them.
    """
    if is_hop_wrapper(code):
        return True
    if _in_torch(code, torch_files.TRANSFORMS):
        return False
    return _in_torch(code, torch_files.INTERNAL_FOLDERS) and not is_stand_in(code)


def is_torchs(code: CodeType) -> bool:
    """Whether ``code`` is from a file of torch's."""
    return _in_torch(code, ("",))


def is_hop_wrapper(code: CodeType) -> bool:
    """Whether ``code`` is what an uncompiled ``flex_attention`` call compiles."""
    return code.co_name == torch_files.HOP_WRAPPER


def memory_of(code: CodeType) -> str:
    """What a frame of torch's ``flex_attention`` takes a lot of memory for; empty if for nothing.

    ``dense_attention``, ``dense_backward`` or ``block_mask``, which hold B x H x Q x KV elements.
    """
    what = torch_files.MEMORY_FRAMES.get(code.co_name, "")
    return what if what and _in_torch(code, torch_files.FLEX_FILES) else ""


def is_graph(code: CodeType) -> bool:
    """Whether ``code`` is what FX generated of a graph."""
    return code.co_filename.startswith(torch_files.GENERATED_GRAPH)


def is_operators_call(code: CodeType) -> bool:
    """Whether a frame of ``code`` is the call of a higher-order operator, before its dispatch."""
    return code.co_name == "__call__" and _in_torch(code, torch_files.OPERATORS)


def is_graph_runner(code: CodeType) -> bool:
    """Whether a frame of ``code`` runs a compiled graph, or is one."""
    return is_graph(code) or _in_torch(code, torch_files.GRAPH_RUNNERS)


def is_aot_runtime(code: CodeType) -> bool:
    """Whether a frame of ``code`` is AOTAutograd's, around a graph that it has compiled."""
    return _in_torch(code, torch_files.AOT_RUNTIME)


def is_of_compiler(code: CodeType) -> bool:
    """Whether a thread with a frame of ``code`` may have the compiler's process-wide state set."""
    return _in_torch(code, torch_files.COMPILER)


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_limit_hit(error: BaseException) -> bool:
    """Whether a compile failed because of ``recompile_limit`` or ``accumulated_recompile_limit``.

    Dynamo then runs the code object eagerly for good, in every thread, or raises
    ``FailOnRecompileLimitHit`` under ``fullgraph=True``.
    """
    if type(error).__name__ == "FailOnRecompileLimitHit":
        return True
    # The one failure for which dynamo keeps running the entries it has (RUN_ONLY) is this one.
    return symbols.LIMIT_EXCEEDED in str(error)


def route_of_failure(error: BaseException, *, fullgraph: bool) -> str:
    """How a failed compile makes the call run eager; empty if it raises instead.

    ``recompile_limit``, ``unsupported`` (what dynamo takes for a graph break) or
    ``suppressed_error``, as ``ConvertFrame.__call__`` in ``torch/_dynamo/convert_frame.py`` decides
    it; under ``fullgraph`` that class is not used.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if fullgraph or kinds & symbols.HARD_FAILURES:
        return ""
    if is_limit_hit(error):
        return "recompile_limit"
    if kinds & symbols.SOFT_FAILURES:
        return "unsupported"
    return "suppressed_error" if symbols.SUPPRESS_ERRORS.find(default=False) else ""


# Asked at each dense attention call, and slow there: the tensors have filled the caches.
@functools.lru_cache(maxsize=64)
def is_fake(of: type) -> bool:
    """Whether a tensor of a type only stands for one, as those do that a trace is made with."""
    return not symbols.FAKE_TENSORS.isdisjoint(kind.__name__ for kind in of.__mro__)


def _forward_of(module: Any) -> Any:
    forward = getattr(module, "forward", None)
    # An optimised module's forward is a compile_wrapper; what that runs is the original's.
    original = getattr(module, "_orig_mod", None)
    return getattr(original, "forward", forward) if original is not None else forward


def _in_torch(code: CodeType, places: tuple[str, ...]) -> bool:
    return _is_below(code.co_filename, _torch_file(), places)


def _torch_file() -> str:
    """Where torch is; empty before it is imported."""
    return getattr(sys.modules.get("torch"), "__file__", None) or ""


# A dense attention call may ask it twice for each of its callers.
@functools.lru_cache(maxsize=8192)
def _is_below(path: str, torch_file: str, places: tuple[str, ...]) -> bool:
    """Whether ``path`` lies in torch's folder, and there begins with one of ``places``."""
    folder = os.path.dirname(torch_file)  # noqa: PTH120
    if not folder or not path.startswith(folder + os.sep):
        return False
    return path[len(folder) + 1 :].startswith(places)
