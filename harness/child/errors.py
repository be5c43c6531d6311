"""Exceptions as event data: numbered, with their causes, contexts and group members."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

from .recorder import Recorder
from .stacks import frames_of

_NUMBER = "__compile_race_number__"
_MAX_LINKS = 64
_MAX_MESSAGE = 8000

_numbers = itertools.count(1)


def record_error(
    recorder: Recorder, via: str, error: BaseException, future: int | None = None
) -> None:
    """Record an exception that ended a thread, the program (``main``) or a future's call."""
    data: dict[str, Any] = {"via": via, "chain": error_chain(error)}
    if future is not None:
        data["future"] = future
    recorder.emit("thread_error", data)


def error_chain(error: BaseException) -> list[dict[str, Any]]:
    """Return ``values.ErrorLink`` of an exception, its causes, contexts and members, at most 64."""
    links: list[dict[str, Any]] = []
    seen: set[int] = set()
    todo = [(error, "self")]
    while todo and len(links) < _MAX_LINKS:
        current, relation = todo.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        links.append(
            {
                "id": error_number(current),
                "type": type_name(type(current)),
                "message": _message(current),
                "frames": frames_of(current.__traceback__),
                "relation": relation,
            }
        )
        todo.extend(_related(current))
    return links


def error_number(error: BaseException) -> int:
    """Return a number that the same exception object has throughout this process's recording."""
    # The number lives on the exception: most cannot be referenced weakly, and a strong reference
    # would keep the frames of its traceback, with their tensors, alive.
    pid = os.getpid()
    try:
        noted = error.__dict__.get(_NUMBER)
        if noted is not None and noted[0] == pid:  # a pickled one may come from another process
            return int(noted[1])
        number = next(_numbers)
        error.__dict__[_NUMBER] = (pid, number)
    except Exception:  # noqa: BLE001 - an exception class may forbid attributes
        return next(_numbers)
    return number


def type_name(kind: type) -> str:
    """Return an exception class's name, with its module unless that is ``builtins``."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _related(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield member, "member"
    if error.__cause__ is not None:
        yield error.__cause__, "cause"
    elif error.__context__ is not None and not error.__suppress_context__:
        yield error.__context__, "context"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - a class's own __str__ may fail
        text = f"(its message cannot be read: {type(broken).__name__})"
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + " ..."
