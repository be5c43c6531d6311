"""The objects whose methods dynamo compiles, numbered in order of appearance."""

import itertools
import weakref
from collections.abc import Mapping
from types import CodeType
from typing import Any

_numbers = itertools.count(1)
_known: dict[int, tuple[int, weakref.ref[Any]]] = {}


def owner_of(code: CodeType, variables: Mapping[str, Any]) -> int | None:
    """Number of the object that a frame of ``code`` is a method call of; None if it is none.

    All instances of a class share a method's code object, and so its cache. The objects are held
    weakly: one that is gone has no number that another one could get.
    """
    if not code.co_argcount:
        return None
    owner = variables.get(code.co_varnames[0])
    method = getattr(type(owner), code.co_name, None)
    if getattr(method, "__code__", None) is not code:
        return None
    known = _known.get(id(owner))
    if known is not None and known[1]() is owner:
        return known[0]
    number, key = next(_numbers), id(owner)
    try:
        reference = weakref.ref(owner, lambda gone: _forget(key, gone))
    except TypeError:  # it cannot be referred to weakly
        return None
    _known[key] = (number, reference)
    return number


def _forget(key: int, gone: "weakref.ref[Any]") -> None:
    known = _known.get(key)
    if known is not None and known[1] is gone:
        _known.pop(key, None)
