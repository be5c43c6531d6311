"""The context of a call, as the calling thread has it: what dynamo guards on besides the inputs."""

import json
import sys
from typing import Any

from . import torch_symbols as symbols
from .probes import Unavailable

Described = dict[str, Any]

_MAX_CONFIG = 40
_MAX_TEXT = 200
_MAX_INPUTS = 16
# Two are always given, so that two threads' contexts compare key by key.
_AUTOCAST_DEVICES = ("cpu", "cuda")
_OTHER_DEVICES = ("xpu", "hpu", "mps", "mtia", "maia", "xla")
# Fields of the GLOBAL_STATE guard that the context has under names of its own.
_NAMED = frozenset(
    {
        "grad_mode",
        "num_threads",
        "default_dtype",
        "torch_function",
        "deterministic_algorithms",
        "autocast_state",
    }
)


def describe() -> Described:
    """Describe the calling thread's context as ``harness.events.values.Context``.

    Costs about 50 microseconds, so it is for compiles, misses and first calls, not for each call.
    Initialises nothing: the current device is given only once the program has initialised CUDA.
    """
    torch: Any = sys.modules["torch"]
    state = global_state()
    modes = symbols.FUNCTION_MODES.get()()
    # torch.set_default_device and ``with device:`` are modes of the thread that ran them.
    devices = [str(mode.device) for mode in modes if type(mode).__name__ == "DeviceContext"]
    return {
        "grad_mode": state["grad_mode"],
        "inference_mode": torch.is_inference_mode_enabled(),
        "autocast": _autocast(torch),
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "torch_function": state.get("torch_function", True),
        "torch_function_modes": [_mode_name(mode) for mode in modes],
        "num_threads": state["num_threads"],
        "default_dtype": str(torch.get_default_dtype()),
        "default_device": devices[-1] if devices else "cpu",
        "deterministic": bool(state["deterministic_algorithms"]),
        "numeric_flags": {
            name: value for name, value in state.items() if name not in _NAMED and _plain(value)
        },
        "current_device": _current_device(torch),
        "config": _config(),
    }


def global_state() -> Described:
    """What dynamo's GLOBAL_STATE guard would ask for in the calling thread now."""
    state: Described = json.loads(symbols.GLOBAL_STATE.get()().__getstate__())
    return state


def describe_inputs(variables: dict[str, Any]) -> list[Described]:
    """Describe the tensors among a frame's locals, those in its tuples, lists and dicts included.

    At most 16. Reads metadata only: nothing is computed, copied or waited for.
    """
    torch: Any = sys.modules["torch"]
    found: list[Described] = []
    with symbols.DISABLE_TORCH_FUNCTION.get()():
        for name, value in _named_values(variables):
            if len(found) == _MAX_INPUTS:
                break
            if isinstance(value, torch.Tensor):
                shape = list(value.shape)
                if all(type(size) is int for size in shape):  # no symbolic sizes
                    found.append(_describe_tensor(name, value, shape))
    return found


def _named_values(variables: dict[str, Any]) -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    for name, value in variables.items():
        if type(value) in (tuple, list):
            values += [(f"{name}[{index}]", item) for index, item in enumerate(value[:_MAX_INPUTS])]
        elif type(value) is dict:
            items = list(value.items())[:_MAX_INPUTS]
            values += [(f"{name}[{key!r}]"[:_MAX_TEXT], item) for key, item in items]
        else:
            values.append((name, value))
    return values


def _describe_tensor(name: str, value: Any, shape: list[int]) -> Described:
    return {
        "name": name,
        "shape": shape,
        "dtype": str(value.dtype),
        "device": str(value.device),
        "requires_grad": value.requires_grad,
        "dispatch_keys": str(symbols.DISPATCH_KEYS.get()(value)),
    }


def _autocast(torch: Any) -> dict[str, list[Any]]:
    described = {}
    for device in _AUTOCAST_DEVICES + _OTHER_DEVICES:
        try:
            enabled = torch.is_autocast_enabled(device)
            if enabled or device in _AUTOCAST_DEVICES:
                described[device] = [enabled, str(torch.get_autocast_dtype(device))]
        except RuntimeError:  # a device type that this build does not know
            continue
    return described


def _mode_name(mode: object) -> str:
    name = type(mode).__name__
    return f"{name}({mode.device})" if name == "DeviceContext" else name  # type: ignore[attr-defined]


def _current_device(torch: Any) -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _config() -> Described:
    try:
        overrides = symbols.config_overrides()
    except Unavailable:  # dynamo itself is not imported yet: all its defaults hold
        return {}
    public = {
        name: value
        for name, value in overrides.items()
        if not name.startswith("_") and _plain(value)
    }
    return dict(list(public.items())[:_MAX_CONFIG])


def _plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT
    return value is None or isinstance(value, bool | int | float)
