"""Calls that dynamo has not looked up yet, and compiles whose entries it may not have added yet.

Where the entries are asked before a call (``asking``), another thread may add one between the
answers and dynamo's own lookup. Nothing runs at a lookup that hits, and dynamo adds an entry in C,
once ``_compile`` and its lock are left, so neither moment can be recorded. A thread's stack tells
which side of them it is on: behind both it runs the function, or has left ``compile_wrapper``.
"""

import itertools
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from . import torch_code
from .recorder import Recorder

_of: WeakKeyDictionary[Recorder, "Lookups"] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Near:
    """A thread that has come to ``compile_wrapper``, or to the end of a compile."""

    code: CodeType
    id: int


@dataclass(frozen=True, slots=True)
class _Asked(_Near):
    number: int


@dataclass(frozen=True, slots=True)
class _Compiled(_Near):
    compile_id: str


_N = TypeVar("_N", bound=_Near)


def of(recorder: Recorder) -> "Lookups | None":
    """What ``begin`` made for the recorder; None where nothing is asked."""
    return _of.get(recorder)


def begin(recorder: Recorder) -> "Lookups":
    """Follow the threads of the recorder's process."""
    return _of.setdefault(recorder, Lookups())


class Lookups:
    """What each thread is about to look up, or to add.

    A thread tells of itself, before it reads the entries and after its compile; whoever then asks
    for the others misses none of those whose lookup, or whose entry, is still to come. One that is
    just past it may be among them.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        # By the threads' identifiers. One that has ended stays, without a stack, until a thread
        # that has got its identifier arrives at a call itself.
        self._asked: dict[int, _Asked] = {}
        self._compiled: dict[int, _Compiled] = {}

    def arrives(self) -> None:
        """The calling thread is at a call: whatever it did before is over."""
        me = threading.get_ident()
        self._asked.pop(me, None)
        self._compiled.pop(me, None)

    def asks(self, code: CodeType, described: Mapping[str, Any]) -> int:
        """The calling thread asks about its call of ``described``; return the question's number."""
        number = next(self._numbers)
        self._asked[threading.get_ident()] = _Asked(code, described["id"], number)
        return number

    def compiled(self, code: CodeType, described: Mapping[str, Any], compile_id: str) -> None:
        """The calling thread's compile is over, and its entry will be added."""
        self._compiled[threading.get_ident()] = _Compiled(code, described["id"], compile_id)

    def waiting(self, described: Mapping[str, Any]) -> list[int]:
        """Numbers of other threads' questions whose calls are still to be looked up."""
        return [asked.number for asked in _still(self._asked, described)]

    def adding(self, described: Mapping[str, Any]) -> list[str]:
        """Ids of other threads' compiles whose entries may still have to be added."""
        return [compiled.compile_id for compiled in _still(self._compiled, described)]


def _still(near: dict[int, _N], described: Mapping[str, Any]) -> list[_N]:
    number, me = described["id"], threading.get_ident()
    others = {i: one for i, one in list(near.items()) if i != me and one.id == number}
    if not others:
        return []
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to another thread's stack
    return [one for ident, one in others.items() if _is_before(frames.get(ident), one.code)]


def _is_before(frame: FrameType | None, code: CodeType) -> bool:
    """Whether a thread is in ``compile_wrapper`` and does not run what is compiled of ``code``."""
    wrapper = torch_code.compile_wrapper_around(frame)
    while frame is not None and frame is not wrapper:
        if _place(frame.f_code) == _place(code):
            return False
        frame = frame.f_back
    return wrapper is not None


def _place(code: CodeType) -> tuple[str, int, str]:
    """What a code object has in common with the one that dynamo makes of it."""
    return code.co_filename, code.co_firstlineno, code.co_name
