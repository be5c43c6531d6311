"""Tells by a stack whether a compiled graph of the program called something."""

import itertools
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

from . import torch_code

# By the identity of a generated graph's code: hashing one goes through all its constants.
_known: dict[int, tuple[weakref.ref[CodeType], bool]] = {}

_WAYS = 8
_ways: tuple[tuple[int, CodeType], ...] = ()
"""How far out a graph was found, and the call of the operator that it had made. There is a way for
each of an operator's dispatches: with gradients and without, say."""


def caller_in_compiled_graph(level: int) -> bool:
    """``in_compiled_graph`` of the callers from the one on that ``sys._getframe(level)`` returns.

    A graph that is known is looked for where graphs were found before: of the frames on the way
    there, each of which Python would have to make an object of, only the outermost is looked at.
    Where that is the operator's own call, made by the graph, only its dispatch lies between.
    """
    for depth, called in _ways:
        try:
            outermost = sys._getframe(level + 1 + depth)  # noqa: SLF001 - no other way is cheap
        except ValueError:
            continue
        graph = outermost.f_back
        if outermost.f_code is called and graph is not None:
            compiled = _answer(graph.f_code)
            if compiled is not None:
                return compiled
    passed: list[FrameType] = []
    compiled = in_compiled_graph(_noting(passed, sys._getframe(level + 1)))  # noqa: SLF001
    _learn(passed)
    return compiled


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
            compiled = _answer(graph)
            if compiled is None:
                compiled, certain = _is_compiled(itertools.chain(passed, callers))
                if certain:
                    _keep(graph, compiled=compiled)
            return compiled
        if torch_code.is_compile_wrapper(graph):
            break
    return _is_compiled(passed)[0]


def _noting(passed: list[FrameType], frame: FrameType) -> Iterator[FrameType]:
    for caller in torch_code.outwards(frame):
        passed.append(caller)
        yield caller


def _learn(passed: list[FrameType]) -> None:
    """Remember the way to the first graph, if that is known now."""
    global _ways  # noqa: PLW0603
    for depth, (inner, outer) in enumerate(itertools.pairwise(passed)):
        if torch_code.is_graph(outer.f_code):
            way = depth, inner.f_code
            known = _answer(outer.f_code) is not None
            if known and torch_code.is_operators_call(inner.f_code) and way not in _ways:
                _ways = (*_ways, way)[-_WAYS:]
            return


def _answer(graph: CodeType) -> bool | None:
    """What is kept of a graph; None if nothing is."""
    reference, compiled = _known.get(id(graph), (None, False))
    return compiled if reference is not None and reference() is graph else None


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
