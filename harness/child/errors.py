"""Exceptions as event data: numbered, with their causes, contexts and group members."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

from . import devices
from .privacy import mask
from .recorder import Recorder
from .stacks import frames_of

_NUMBER = "__compile_race_number__"
_MAX_LINKS = 64
_MAX_MESSAGE = 8000
_MAX_WORDS = 600

_numbers = itertools.count(1)


def record_error(
    recorder: Recorder, via: str, error: BaseException, future: int | None = None
) -> bool:
    """Record an exception that ended a thread, the program (``main``) or a future's call.

    Returns whether it was written: a loop of errors is left out after its first few hundred.
    """
    recorder.failing(error)
    data: dict[str, Any] = {"via": via, "chain": error_chain(error)}
    if future is not None:
        data["future"] = future
    data |= devices.of_error(error)
    return recorder.emit("thread_error", data) > 0


def error_chain(error: BaseException) -> list[dict[str, Any]]:
    """Return ``values.ErrorLink`` of an exception, its causes, contexts and members, at most 64."""
    return [
        {
            "id": error_number(current),
            "type": type_name(type(current)),
            "message": _message(current),
            "frames": frames_of(current.__traceback__),
            "relation": relation,
        }
        for current, relation in linked(error)
    ]


def linked(error: BaseException) -> list[tuple[BaseException, str]]:
    """Return an exception, its causes, contexts and members, and what each is to the first."""
    found: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    todo = [(error, "self")]
    while todo and len(found) < _MAX_LINKS:
        current, relation = todo.pop(0)
        if id(current) not in seen:
            seen.add(id(current))
            found.append((current, relation))
            todo.extend(_related(current))
    return found


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


def in_words(error: BaseException) -> str:
    """Return an exception's class and message in at most 600 characters; never raises."""
    return f"{type(error).__name__}: {_message(error)}"[:_MAX_WORDS]


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
    # Cut first, so that a message of megabytes costs no more than a long one.
    return mask(text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + " ...")
