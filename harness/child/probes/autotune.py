"""Cold calls of kernels under ``@triton.autotune``, and the other threads that meet them.

An autotuner keeps the arguments of a call on itself and clears them when any call of the kernel
has returned. Nothing is recorded of calls that find their best config in its cache.

The point ``autotune`` is entered where a call is found to be cold, with its arguments in place;
schedules can hold a thread there and, as further entries, before each config that it tries.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import torch_symbols as symbols
from ..errors import in_words
from ..recorder import Recorder
from ..settings import Settings

_ATTRIBUTE = "__compile_race_kernel__"
_numbers = itertools.count(1)


@dataclass(eq=False)
class _Tuning:
    """A cold call. ``met`` is written by the threads that come upon it, one step each.

    Attributes:
        arguments: what the autotuner held when the call was found to be cold.
        met: native ids of threads that tuned the kernel at the same time, or returned from it.
        written: its beginning was.
    """

    tuner: Any
    tid: int
    arguments: object
    met: dict[int, None] = field(default_factory=dict)
    written: bool = False


class AutotuneProbe:
    """Wraps ``Autotuner.run``, and what it calls for a cold call alone."""

    name = "autotune"
    modules: tuple[str, ...] = (symbols.AUTOTUNER_RUN.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this triton lacks a symbol; nothing is wrapped then."""
        run, prune = symbols.AUTOTUNER_RUN.get(), symbols.AUTOTUNER_PRUNE.get()
        bench = symbols.AUTOTUNER_BENCH.get()
        under_way: list[_Tuning] = []
        recorder.at_fork(after_in_child=under_way.clear)
        wrapped = _wrap_run(run, recorder, under_way)
        symbols.AUTOTUNER_RUN.replace(wrapped)
        symbols.AUTOTUNER_PRUNE.replace(_wrap_prune(prune, recorder, under_way, wrapped))
        if recorder.schedule is not None:
            symbols.AUTOTUNER_BENCH.replace(_wrap_bench(bench, recorder))


def _wrap_run(
    original: Callable[..., Any], recorder: Recorder, under_way: list[_Tuning]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        error = ""
        try:
            return original(self, *args, **kwargs)
        except BaseException as raised:
            error = in_words(raised)
            raise
        finally:
            if under_way:  # as a rule none is, and a launch pays for no more than this
                _returned(recorder, under_way, self, error)

    return run


def _wrap_prune(
    original: Callable[..., Any],
    recorder: Recorder,
    under_way: list[_Tuning],
    run: Callable[..., Any],
) -> Callable[..., Any]:
    @functools.wraps(original)
    def prune_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1).f_back  # noqa: SLF001
        # Autotuner.warmup calls it too, and launches nothing.
        if frame is not None and frame.f_code is run.__code__:
            _begin(recorder, under_way, self)
        return original(self, *args, **kwargs)

    return prune_configs


def _wrap_bench(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @functools.wraps(original)
    def _bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.reach("autotune", "enter")
        return original(self, *args, **kwargs)

    return _bench


def _begin(recorder: Recorder, under_way: list[_Tuning], tuner: Any) -> None:
    """A call found no config for its key, with its arguments in place; never raises."""
    try:
        arguments = getattr(tuner, symbols.AUTOTUNER_ARGUMENTS, None)
        tuning = _Tuning(tuner, recorder.local.tid, arguments)
        for other in _others(under_way, tuner, tuning.tid):
            other.met[tuning.tid] = None
            tuning.met[other.tid] = None
        under_way.append(tuning)
        tuning.written = _write(recorder, tuning, "enter")
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1
    recorder.reach("autotune", "enter")


def _returned(recorder: Recorder, under_way: list[_Tuning], tuner: Any, error: str) -> None:
    """A call of a kernel has returned, or failed; never raises."""
    own = None
    try:
        tid = recorder.local.tid
        for other in _others(under_way, tuner, tid):
            other.met[tid] = None
        mine = (t for t in reversed(list(under_way)) if t.tid == tid and t.tuner is tuner)
        own = next(mine, None)
        if own is not None:
            under_way.remove(own)
            _write(recorder, own, "exit", error)
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1
    if own is not None:
        recorder.reach("autotune", "exit")


def _others(under_way: list[_Tuning], tuner: Any, tid: int) -> Iterator[_Tuning]:
    return (t for t in list(under_way) if t.tuner is tuner and t.tid != tid)


def _write(recorder: Recorder, tuning: _Tuning, edge: str, error: str = "") -> bool:
    """Record a beginning or an end; return whether it was written."""
    number = _number_of(tuning.tuner)
    function = getattr(tuning.tuner, symbols.AUTOTUNER_FUNCTION, None)
    data = {
        "kernel": number,
        "name": str(getattr(function, "__name__", "")),
        "met_tids": list(tuning.met),
        "error": error,
        "arguments": _found(tuning) if error else "",
    }
    if edge == "exit" and tuning.written:
        return recorder.emit("autotune", data, edge=edge) > 0
    # Of many alike the first count; an end goes with its beginning, or says what that could not.
    if edge == "exit" and not (tuning.met or error):
        return False
    kind = (edge, number, bool(tuning.met), error)
    return recorder.emit_counted("autotune", kind, data, edge=edge, stack=True) > 0


def _found(tuning: _Tuning) -> str:
    """Whose arguments the autotuner holds once a call has failed, which clears none by itself."""
    now = getattr(tuning.tuner, symbols.AUTOTUNER_ARGUMENTS, None)
    if now is None:
        return "gone"
    return "own" if now is tuning.arguments else "others"


def _number_of(tuner: Any) -> int:
    known = tuner.__dict__.get(_ATTRIBUTE)
    if known is None:  # of two threads the one that comes first numbers it
        known = tuner.__dict__.setdefault(_ATTRIBUTE, next(_numbers))
    return int(known)


PROBE = AutotuneProbe()
