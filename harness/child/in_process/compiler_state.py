"""The compiler's state that a piece of a program should leave as it found it."""

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import torch_code
from .. import torch_symbols as symbols
from ..probes.invariants import invariants

_INVARIANTS = {
    "fx_flag_clear": "the FX-tracing flag is set",
    "is_compiling_clear": "torch.compiler.is_compiling() is True",
    "module_call_original": "nn.Module is left patched by FX",
    "patcher_clear": "an FX patcher is left behind",
    "current_meta_empty": "FX's current metadata is left behind",
}


@dataclass(frozen=True)
class State:
    """What there is of it at one moment, as one thread sees it.

    Attributes:
        values: by what each is called.
        unsure: names, or the beginnings of names, of what another thread that was inside the
            compiler at that moment may have set for as long as it is there.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()


def state() -> State:
    """What there is of it now, as the calling thread sees it; nothing until dynamo is imported."""
    if symbols.EVAL_FRAME_MODULE not in sys.modules:
        return State()
    values = _dirty()
    busy = _is_compiler_in_use()
    # What another thread had set when it was read first, and has taken back since, is none.
    values &= _dirty()
    config = symbols.RECOMPILE_LIMIT.module
    found: dict[str, Any] = {name: True for name in _INVARIANTS.values() if name in values}
    found["the stance"] = symbols.stance()[0] or "default"
    found |= {f"{config}.{name}": value for name, value in symbols.config_overrides().items()}
    if not busy:
        return State(found)
    shared = (config,) if symbols.config_is_of_process() else ()
    return State(found, unsure=(*_INVARIANTS.values(), *shared))


def changes(before: State, after: State) -> list[str]:
    """What is otherwise than it was, in words.

    What another thread was perhaps about to set or to set back, then or now, is left out.
    """
    unsure = (*before.unsure, *after.unsure)
    found = []
    for name in dict.fromkeys((*before.values, *after.values)):
        old, new = before.values.get(name, _NONE), after.values.get(name, _NONE)
        if old == new or (name == "the stance" and {old, new} == {_NONE, "default"}):
            continue
        if name.startswith(unsure):
            continue
        if new is True and name in _INVARIANTS.values():
            found.append(name)
        elif name not in _INVARIANTS.values():
            found.append(f"{name} was {_said(old)} and is {_said(new)}")
    return found


def _dirty() -> set[str]:
    held = invariants()
    return {said for name, said in _INVARIANTS.items() if held[name] is False}


def _is_compiler_in_use() -> bool:
    """Whether another thread is inside the compiler just now."""
    own = threading.get_ident()
    return any(
        torch_code.is_of_compiler(caller.f_code)
        for ident, frame in sys._current_frames().items()  # noqa: SLF001
        if ident != own
        for caller in torch_code.outwards(frame)
    )


class _None:
    """Stands for a value that is not set."""


_NONE = _None()


def _said(value: object) -> str:
    return "the default" if value is _NONE else repr(value)
