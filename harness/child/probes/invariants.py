"""State of torch's that must hold whenever no thread compiles or traces, checked at the end."""

import sys
from typing import Any

from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings
from . import Unavailable


class InvariantsProbe:
    """Patches nothing: reads the state when the program ends."""

    name = "invariants"
    modules: tuple[str, ...] = (symbols.FX_TRACING.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Arrange for the check. Raises Unavailable if the FX flag cannot be read."""
        if symbols.FX_FLAG.find() is None and symbols.FX_FLAG_OF_THREAD.find() is None:
            raise Unavailable(f"{symbols.FX_FLAG}, {symbols.FX_FLAG_OF_THREAD}")
        recorder.at_end.append(lambda: _record(recorder))


def _record(recorder: Recorder) -> None:
    recorder.emit("invariants", check(recorder))


def check(recorder: Recorder) -> dict[str, Any]:
    """Return ``harness.events.calls.InvariantsData``."""
    return {**invariants(), "busy_tids": sorted({*recorder.compiling, *recorder.tracing})}


def invariants() -> dict[str, bool | None]:
    """Return whether each holds now; None where this torch has no such state.

    From torch 2.14 on the FX flag is each thread's own; the calling thread's is checked.
    """
    patcher = symbols.FX_PATCHER.find(default=_ABSENT)
    meta = symbols.FX_CURRENT_META.find()
    return {
        "fx_flag_clear": _fx_flag_clear(),
        "is_compiling_clear": _not(symbols.IS_COMPILING.find()),
        "module_call_original": _module_call_original(),
        "patcher_clear": None if patcher is _ABSENT else patcher is None,
        "current_meta_empty": None if meta is None else not meta,
    }


_ABSENT = object()


def _fx_flag_clear() -> bool | None:
    flag = symbols.FX_FLAG.find()
    if flag is None:
        of_thread = symbols.FX_FLAG_OF_THREAD.find()
        flag = None if of_thread is None else of_thread()
    return _not(flag)


def _module_call_original() -> bool | None:
    call, getattribute = symbols.FX_MODULE_CALL.find(), symbols.FX_MODULE_GETATTR.find()
    # Where Ctrl-C broke off torch's import, parts of it are in sys.modules and torch is not.
    nn: Any = sys.modules.get("torch.nn")
    module = getattr(nn, "Module", None)
    if call is None or getattribute is None or module is None:
        return None
    return module.__call__ is call and module.__getattr__ is getattribute


def _not(flag: bool | None) -> bool | None:  # noqa: FBT001 - a value, not a switch
    return None if flag is None else not flag


PROBE = InvariantsProbe()
