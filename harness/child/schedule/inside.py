"""Points inside a compile that no event tells of: they are there for schedules alone."""

import functools
from collections.abc import Callable
from typing import Any

from .. import torch_symbols as symbols
from ..recorder import Recorder


def hold_inside_compiles(recorder: Recorder) -> None:
    """Reach ``backend_call`` and ``joint_trace``. Raises Unavailable if this torch has them not.

    ``backend_call`` is around the call of a compile's backend. ``joint_trace`` is where AOTAutograd
    runs dynamo's graph under its trace, with the graph's metadata in the place of the thread's; it
    also does so without a trace, to learn of the outputs, and that is none.
    """
    call, run = symbols.CALL_BACKEND.get(), symbols.RUN_GRAPH.get()
    symbols.CALL_BACKEND.replace(_around(call, "backend_call", recorder, lambda: True))
    symbols.RUN_GRAPH.replace(
        _around(run, "joint_trace", recorder, lambda: recorder.local.traces > 0)
    )


def _around(
    original: Callable[..., Any], point: str, recorder: Recorder, applies: Callable[[], bool]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def held(*args: Any, **kwargs: Any) -> Any:
        if not applies():
            return original(*args, **kwargs)
        recorder.reach(point, "enter")
        try:
            return original(*args, **kwargs)
        finally:
            recorder.reach(point, "exit")

    return held
