"""Comparing and naming contexts: what dynamo guards on besides the inputs' values."""

from collections.abc import Callable

from harness.events.values import Context, TensorInput
from harness.timeline.reasons import Guard


def differing(made: Context, seen: Context) -> frozenset[Guard]:
    """State of the thread in which two contexts differ, so that an entry of one rejects the other.

    Compared as dynamo's GLOBAL_STATE guard does it (``torch/csrc/dynamo/guards.cpp``), and beside
    it inference mode and the stack of torch-function modes, which have guards of their own.
    """
    found = set()
    if made.grad_mode != seen.grad_mode:
        found.add(Guard.GRAD_MODE)
    if made.inference_mode != seen.inference_mode:
        found.add(Guard.INFERENCE_MODE)
    if _autocast_differs(made, seen):
        found.add(Guard.AUTOCAST)
    if (
        made.torch_function_modes != seen.torch_function_modes
        or made.torch_function != seen.torch_function
    ):
        found.add(Guard.TORCH_FUNCTION_MODE)
    if made.num_threads != seen.num_threads:
        found.add(Guard.NUM_THREADS)
    if (made.default_dtype, made.deterministic, made.numeric_flags) != (
        seen.default_dtype,
        seen.deterministic,
        seen.numeric_flags,
    ):
        found.add(Guard.NUMERIC)
    return frozenset(found)


def autocast(context: Context) -> dict[str, str]:
    """Device types for which autocast is on, with its dtype."""
    return {device: dtype for device, (on, dtype) in context.autocast.items() if on}


def describe(context: Context | None) -> str:
    """``grad on, autocast cpu bfloat16``: what of a context matters to a reader, in short."""
    if context is None:
        return "context not recorded"
    parts = ["inference mode" if context.inference_mode else f"grad {_on(context.grad_mode)}"]
    parts += [f"autocast {kind} {dtype}" for kind, dtype in sorted(autocast(context).items())]
    if context.torch_function_modes:
        parts.append("modes " + ", ".join(context.torch_function_modes))
    if not context.torch_function:
        parts.append("torch function off")
    if context.default_device not in {"", "cpu"}:
        parts.append(f"default device {context.default_device}")
    if context.default_dtype not in {"", "torch.float32", "float32"}:
        parts.append(f"default dtype {context.default_dtype}")
    if context.deterministic:
        parts.append("deterministic algorithms")
    if context.num_threads:
        parts.append(f"num_threads {context.num_threads}")
    return ", ".join(parts)


def difference(guard: Guard, made: Context | None, seen: Context | None) -> str:
    """How two contexts differ in what ``guard`` guards: ``gradients off there, on here``."""
    if made is None or seen is None:
        return ""
    if guard is Guard.NUMERIC:
        return "; ".join(
            f"{name} {there} there, {here} here" for name, there, here in numeric_flags(made, seen)
        )
    if guard not in _STATE:
        return ""
    name, state = _STATE[guard]
    return f"{name} {state(made)} there, {state(seen)} here"


def numeric_flags(made: Context, seen: Context) -> list[tuple[str, str, str]]:
    """Numeric flags in which two contexts differ: each one's name and its value in either."""
    there, here = _flags(made), _flags(seen)
    names = [*there, *(name for name in here if name not in there)]
    absent = "not recorded"
    return [
        (name, there.get(name, absent), here.get(name, absent))
        for name in names
        if there.get(name) != here.get(name)
    ]


def shapes(inputs: tuple[TensorInput, ...], limit: int = 6) -> str:
    """``q [1, 8, 128, 16] float32 cpu``; at most ``limit`` tensors."""
    parts = [
        f"{tensor.name} {list(tensor.shape)} {tensor.dtype.removeprefix('torch.')} {tensor.device}"
        for tensor in inputs[:limit]
    ]
    if len(inputs) > limit:
        parts.append(f"{len(inputs) - limit} more")
    return ", ".join(parts)


def _autocast_differs(made: Context, seen: Context) -> bool:
    if made.autocast_cache != seen.autocast_cache or autocast(made) != autocast(seen):
        return True
    # The dtype is guarded even while autocast is off.
    both = made.autocast.keys() & seen.autocast.keys()
    return any(made.autocast[device] != seen.autocast[device] for device in both)


def _flags(context: Context) -> dict[str, str]:
    own = {"default dtype": context.default_dtype.removeprefix("torch.")} | {
        "deterministic_algorithms": _on(context.deterministic)
    }
    flags = context.numeric_flags.items()
    return own | {name: _on(v) if isinstance(v, bool) else str(v) for name, v in flags}


def _on(value: bool) -> str:  # noqa: FBT001 - formats a flag
    return "on" if value else "off"


def _autocast(context: Context) -> str:
    on = sorted(autocast(context).items())
    return ", ".join(f"{kind} {dtype}" for kind, dtype in on) or "off"


def _modes(context: Context) -> str:
    modes = list(context.torch_function_modes)
    if context.default_device and not modes:
        modes.append(f"default device {context.default_device}")
    return ", ".join(modes) or "none"


_STATE: dict[Guard, tuple[str, Callable[[Context], str]]] = {
    Guard.GRAD_MODE: ("gradients", lambda context: _on(context.grad_mode)),
    Guard.INFERENCE_MODE: ("inference mode", lambda context: _on(context.inference_mode)),
    Guard.AUTOCAST: ("autocast", _autocast),
    Guard.TORCH_FUNCTION_MODE: ("torch-function modes", _modes),
    Guard.NUM_THREADS: ("num_threads", lambda context: str(context.num_threads)),
}
