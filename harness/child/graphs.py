"""Tells by a stack whether a compiled graph of the program called something."""

import itertools
import weakref
from collections.abc import Iterable
from types import CodeType, FrameType

from . import torch_code

# By the identity of a generated graph's code: hashing one goes through all its constants.
_known: dict[int, tuple[weakref.ref[CodeType], bool]] = {}


def in_compiled_graph(frames: Iterable[FrameType]) -> bool:
    """Whether a compiled graph of the program called the first of ``frames``, innermost first.

    A graph that FX has generated belongs to one compile, and is not asked about twice: most of a
    stack is then not looked at, whose frames Python would have to make objects of.
    """
    callers = iter(frames)
    passed: list[FrameType] = []
    for frame in callers:
        passed.append(frame)
        graph = frame.f_code
        if torch_code.is_graph(graph):
            reference, compiled = _known.get(id(graph), (None, False))
            if reference is None or reference() is not graph:
                compiled, certain = _is_compiled(itertools.chain(passed, callers))
                if certain:
                    _keep(graph, compiled=compiled)
            return compiled
        if torch_code.is_compile_wrapper(graph):
            break
    return _is_compiled(passed)[0]


def _keep(graph: CodeType, *, compiled: bool) -> None:
    number = id(graph)
    _known[number] = (weakref.ref(graph, lambda _: _known.pop(number, None)), compiled)


def _is_compiled(frames: Iterable[FrameType]) -> tuple[bool, bool]:
    """Look outwards, to the nearest ``compile_wrapper``; say whether there is one, too.

    An uncompiled ``flex_attention`` call compiles a wrapper of its own around the operator, which
    is no compile of the program's. With no ``compile_wrapper`` below (a backward graph, or a
    traceback that ends where the error was caught), AOTAutograd's frames tell a compiled one.
    """
    runs = aot = False
    for frame in frames:
        code = frame.f_code
        if torch_code.is_compile_wrapper(code):
            compiled, _ = torch_code.code_of(torch_code.compiled_function(frame))
            internal = compiled is not None and torch_code.is_hop_wrapper(compiled)
            return runs and not internal, True
        runs = runs or torch_code.is_graph_runner(code)
        aot = aot or torch_code.is_aot_runtime(code)
    return aot, False
