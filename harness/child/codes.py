"""Code objects, numbered in order of appearance."""

import itertools
import weakref
from types import CodeType
from typing import Any

from . import torch_code

_numbers = itertools.count(1)
_known: dict[tuple[int, int], tuple[dict[str, Any], list[weakref.ref[Any]]]] = {}


def describe(code: CodeType, target: object = None) -> dict[str, Any]:
    """Describe a code object as ``harness.events.values.Code``, always under the same ``id``.

    The objects are held weakly: keeping a code object alive would keep its compiled graphs alive,
    and their memory. An id is never given twice.

    Args:
        code: the code object that dynamo compiles.
        target: for the one code object that dynamo lets many callables share, the callable
            (see ``torch_code.code_of``): each then has an id, a name and a place of its own.
    """
    key = (id(code), id(target))
    known = _known.get(key)
    if known is None:
        # Two threads may both come here: the first one's number counts.
        known = _known.setdefault(key, (_describe(code, target), []))
        for thing in (code, target):
            _forget_with(thing, key, known[1])
    return known[0]


def describe_function(function: Any) -> dict[str, Any] | None:
    """Describe the code that dynamo compiles for ``function``; None if it has none."""
    code, target = torch_code.code_of(function)
    return None if code is None else describe(code, target)


def _forget_with(thing: object, key: tuple[int, int], references: list[weakref.ref[Any]]) -> None:
    if thing is None:
        return
    try:
        references.append(weakref.ref(thing, lambda _: _known.pop(key, None)))
    except TypeError:
        # Builtin functions and the like cannot be referred to weakly; they are seldom freed.
        return


def _describe(code: CodeType, target: object) -> dict[str, Any]:
    name, source = code.co_qualname, code
    if target is not None:
        name, source = _name_target(target, code)
    return {
        "id": next(_numbers),
        "name": name.rpartition("<locals>.")[2],
        "file": source.co_filename,
        "line": source.co_firstlineno,
        "internal": torch_code.is_internal(source),
    }


def _name_target(target: Any, code: CodeType) -> tuple[str, CodeType]:
    kind = type(target)
    method = getattr(kind, "forward", None) or vars(kind).get("__call__")
    for function in (target, method):
        found = getattr(function, "__code__", None)
        if isinstance(found, CodeType):
            return found.co_qualname, found
    return getattr(target, "__qualname__", kind.__name__), code
