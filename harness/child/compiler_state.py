"""The compiler's state that a piece of a program should leave as it found it."""

import sys
from collections.abc import Mapping
from typing import Any

from . import torch_symbols as symbols
from .probes.invariants import invariants

_INVARIANTS = {
    "fx_flag_clear": "the FX-tracing flag is set",
    "is_compiling_clear": "torch.compiler.is_compiling() is True",
    "module_call_original": "nn.Module is left patched by FX",
    "patcher_clear": "an FX patcher is left behind",
    "current_meta_empty": "FX's current metadata is left behind",
}


def state() -> dict[str, Any]:
    """What there is of it now, as the calling thread sees it, by what it is called.

    Empty as long as dynamo was not imported. A compile in another thread shows in it.
    """
    if symbols.EVAL_FRAME_MODULE not in sys.modules:
        return {}
    held = invariants()
    found: dict[str, Any] = {
        said: True for name, said in _INVARIANTS.items() if held[name] is False
    }
    found["the stance"] = symbols.stance()[0] or "default"
    return found | {
        f"{symbols.RECOMPILE_LIMIT.module}.{name}": value
        for name, value in symbols.config_overrides().items()
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is otherwise than it was, in words."""
    found = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, _NONE), after.get(name, _NONE)
        if old == new or (name == "the stance" and {old, new} == {_NONE, "default"}):
            continue
        if new is True and name in _INVARIANTS.values():
            found.append(name)
        elif name not in _INVARIANTS.values():
            found.append(f"{name} was {_said(old)} and is {_said(new)}")
    return found


class _None:
    """Stands for a value that is not set."""


_NONE = _None()


def _said(value: object) -> str:
    return "the default" if value is _NONE else repr(value)
