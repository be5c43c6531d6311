"""Keeps dynamo from tracing, and from compiling, the frames of this package."""

import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from . import torch_symbols as symbols
from .probes import Unavailable

# Modules of this package that call nothing of the program's.
_DEAD_ENDS = (
    "bounds",
    "caches",
    "calling_thread",
    "codes",
    "context",
    "detail",
    "errors",
    "following",
    "gpus",
    "graphs",
    "in_process.inside",
    "memory",
    "memory_use",
    "out_of_memory",
    "log",
    "lookups",
    "nesting",
    "recorder",
    "reraise",
    "schedule.controller",
    "schedule.delays",
    "schedule.cpu_time",
    "schedule.labels",
    "schedule.order",
    "schedule.priorities",
    "session",
    "stacks",
)


def hide_own_frames() -> None:
    """Have dynamo treat this package's frames as it treats torch's own: run them, never trace.

    What the program calls can go on below such a frame, so dynamo must go on watching there. Below
    the recorder's own functions there is only the standard library, which would be compiled each
    time that a compiled frame breaks into something that we record: there dynamo is told to stop
    looking. Does nothing before dynamo is imported. Raises Unavailable if dynamo would still trace
    our frames.
    """
    if symbols.SKIP_FILES_ADD.module not in sys.modules:
        return
    check = symbols.SKIP_FILES_CHECK.get()
    if check(__file__).skipped:
        return
    for name in _DEAD_ENDS:
        module = sys.modules.get(f"{__package__}.{name}")
        for code in _codes_of(vars(module) if module is not None else {}, module):
            stop_dynamo_below(code)
    symbols.SKIP_FILES_ADD.get()(__package__)
    if not check(__file__).skipped:
        raise Unavailable(f"{symbols.SKIP_FILES_ADD} does not take {__package__}")


def stop_dynamo_below(code: CodeType) -> None:
    """Have dynamo leave alone the frames of ``code`` and all that they call."""
    skip = symbols.EXEC_SKIP.get()
    symbols.SET_EXEC_STRATEGY.get()(code, symbols.EXEC_STRATEGY.get()(skip, skip))


def _codes_of(names: Mapping[str, Any], module: ModuleType | None) -> Iterator[CodeType]:
    """Code of the functions and methods that ``module`` itself defines."""
    for value in names.values():
        if isinstance(value, FunctionType) and value.__module__ == getattr(module, "__name__", ""):
            yield value.__code__
        elif isinstance(value, type) and value.__module__ == getattr(module, "__name__", ""):
            yield from _codes_of(vars(value), module)
