"""What the probes replace, and how it is put back where a watch ends before the program does."""

import concurrent.futures
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from .. import torch_symbols as symbols
from ..probes import Unavailable
from ..probes.guards import ANSWERS

#: Symbols whose value is state of torch's: probes read it, and torch changes it.
STATE = (
    symbols.FX_FLAG,
    symbols.FX_PATCHER,
    symbols.FX_CURRENT_META,
    symbols.IS_COMPILING,
    symbols.STANCE,
    symbols.DYNAMO_CONFIG,
    symbols.RECOMPILE_LIMIT,
    symbols.SUPPRESS_ERRORS,
    symbols.COMPILE_DURING_FX_TRACE,
    symbols.ERROR_DURING_FX_TRACE,
    symbols.COMPILED_CODES,
)
#: Functions that may be made to call another one while they stay the objects that they are.
_CHANGED = (symbols.FX_TRACING,)
_MISSING = object()


@dataclass(frozen=True)
class Place:
    """An attribute that a probe may set. ``owner`` is a module, a class or a function."""

    owner: Any
    name: str

    def value(self) -> object:
        """What is there now: of a class what its own dictionary holds."""
        if isinstance(self.owner, FunctionType):
            return getattr(self.owner, self.name)
        return vars(self.owner).get(self.name, _MISSING)

    def put(self, value: object) -> None:
        """Put ``value`` there."""
        if value is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


@dataclass(frozen=True)
class Change:
    """A place that was changed: what was there and what is there by now."""

    place: Place
    before: object
    after: object


def places() -> Iterator[Place]:
    """Every place that a probe may set, as far as it is imported by now."""
    yield Place(threading.Thread, "start")
    yield Place(threading.Thread, "_delete")
    yield Place(threading, "_make_invoke_excepthook")
    yield Place(threading, "excepthook")
    yield Place(sys, "excepthook")
    for method in ("set_exception", "result", "exception"):
        yield Place(concurrent.futures.Future, method)
    observe = sys.modules.get("dflash_min.observe")
    if observe is not None:
        yield Place(observe, "_observer")
    for symbol in vars(symbols).values():
        if isinstance(symbol, symbols.Symbol) and symbol not in STATE:
            owner = _owner_of(symbol)
            if owner is not None:
                yield Place(owner, symbol.name.rpartition(".")[2])
    for symbol in _CHANGED:
        function = symbol.find()
        if isinstance(function, FunctionType):
            yield Place(function, "__code__")
            yield Place(function, "__defaults__")


def _owner_of(symbol: symbols.Symbol) -> object:
    """The module or class that holds it; None if that is not there, or lacks it."""
    try:
        symbol.get()
        return symbol._owner()[0]  # noqa: SLF001 - where it can be set
    except Unavailable:
        return None


def values() -> dict[tuple[int, str], tuple[Place, object]]:
    """What is in each place now."""
    return {(id(place.owner), place.name): (place, place.value()) for place in places()}


def changes(
    before: dict[tuple[int, str], tuple[Place, object]],
) -> list[Change]:
    """The places in which something else is by now."""
    return [
        Change(place, value, after)
        for place, value in before.values()
        if (after := place.value()) is not value
    ]


def undo(changed: list[Change]) -> list[str]:
    """Put back what was there, the last change first; return places that others changed since.

    What somebody else has put over ours stays. If it is a function in whose closure ours is, as in
    that of what dynamo puts over FX's ``Tracer.trace`` when it is imported, ours is replaced there.
    """
    kept = []
    for change in reversed(changed):
        now = change.place.value()
        if now is change.after:
            change.place.put(change.before)
        elif not _replace_inside(now, change):
            owner = getattr(change.place.owner, "__name__", repr(change.place.owner))
            kept.append(f"{owner}.{change.place.name}")
    return kept


def _replace_inside(function: object, change: Change) -> bool:
    """Put what was there into the closure of a function that calls ours; whether it could be."""
    cells = getattr(function, "__closure__", None) or ()
    found = False
    for cell in cells:
        if cell.cell_contents is change.after:
            cell.cell_contents = change.before
            found = True
    for name, value in list(getattr(function, "__dict__", {}).items()):
        if value is change.after:
            setattr(function, name, change.before)
    return found


class Handlers:
    """The handlers of torch's trace log and the place for dynamo's guard hook."""

    def __init__(self) -> None:
        self._list = logging.getLogger(symbols.TRACE_LOGGER).handlers
        self._handlers = list(self._list)
        self._hook = guard_hook()

    def restore(self) -> None:
        """Take out what was added since."""
        logger = logging.getLogger(symbols.TRACE_LOGGER)
        self._list[:] = [
            handler
            for handler in logger.handlers
            if handler in self._handlers or not type(handler).__module__.startswith(_PACKAGE)
        ]
        logger.handlers = self._list
        set_hook = symbols.SET_GUARD_HOOK.find()
        if set_hook is not None and _is_ours(guard_hook()):
            set_hook(self._hook)


_PACKAGE = str(__package__).rpartition(".")[0]


def guard_hook() -> object:
    """What is in dynamo's place for a guard hook; None if nothing is, or dynamo is not there."""
    try:
        set_hook = symbols.SET_GUARD_HOOK.get()
    except Unavailable:
        return None
    hook = set_hook(None)
    set_hook(hook)
    return hook


def _is_ours(hook: object) -> bool:
    return type(getattr(hook, "__self__", None)).__name__ == ANSWERS
