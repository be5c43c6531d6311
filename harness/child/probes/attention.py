"""Dense attention: the whole matrix of scores, which compiled ``flex_attention`` never makes.

The operator below ``flex_attention`` has a dense kernel of its own. Two things lead to it: a call
that was not compiled (a fallback), and a compiled graph whose backend runs the operator as it is,
as ``aot_eager`` does on purpose (the reference kernel). The stack tells them apart.
"""

import functools
import sys
from types import FrameType
from typing import Any

from .. import torch_code
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings


class AttentionProbe:
    """Wraps the module global ``math_attention``."""

    name = "attention"
    modules: tuple[str, ...] = (symbols.MATH_ATTENTION.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch lacks the function."""
        original = symbols.MATH_ATTENTION.get()

        @functools.wraps(original)
        def math_attention(*args: Any, **kwargs: Any) -> Any:
            # Before the call: it may be the one that runs out of memory.
            try:
                _record(recorder, args, kwargs, sys._getframe(1))  # noqa: SLF001 - who called
            except Exception:  # noqa: BLE001 - the watch must never break the program it watches
                recorder.lost += 1
            return original(*args, **kwargs)

        symbols.MATH_ATTENTION.replace(symbols.stands_for(original, math_attention))


def _record(
    recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
) -> None:
    local = recorder.local
    if local.compiles or local.traces:
        return
    query = args[0] if args else kwargs["query"]
    key = args[1] if len(args) > 1 else kwargs["key"]
    with symbols.DISABLE_TORCH_FUNCTION.get()():
        if torch_code.is_fake(query):
            return
        shape, keys = list(query.shape), key.shape[-2]
        size, dtype = query.element_size(), str(query.dtype)
    batch, heads, queries = shape[:3]
    data = {
        "kind": "reference" if in_compiled_graph(frame) else "fallback",
        "shape": shape,
        "dtype": dtype,
        "scores_bytes": batch * heads * queries * keys * size,
    }
    recorder.emit_counted("dense_attention", data["kind"], data, stack=True)


def in_compiled_graph(frame: FrameType | None) -> bool:
    """Whether ``frame`` was called by a compiled graph of the program, to judge by the stack.

    Going outwards to the nearest ``compile_wrapper``: an uncompiled ``flex_attention`` call
    compiles a wrapper of its own around the operator, which is no compile of the program's. With
    no ``compile_wrapper`` below (a backward graph), AOTAutograd's frames tell a compiled one.
    """
    graph = aot = False
    while frame is not None:
        code = frame.f_code
        if torch_code.is_compile_wrapper(code):
            function = torch_code.compiled_function(frame)
            compiled, _ = torch_code.code_of(function)
            return graph and not (compiled is not None and torch_code.is_hop_wrapper(compiled))
        graph = graph or torch_code.runs_graph(code)
        aot = aot or torch_code.is_aot_runtime(code)
        frame = frame.f_back
    return aot


PROBE = AttentionProbe()
