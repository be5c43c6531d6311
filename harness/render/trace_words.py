"""What an event is called in a trace, and what is told of it."""

from collections.abc import Callable
from typing import Any

from harness.events import calls, schema
from harness.render.stacks import short_place
from harness.timeline.contexts import describe

LONGEST = 500
"""Characters of a message that a trace shows; the recording has the rest."""

_WORDS: dict[type, Callable[[Any], str]] = {
    schema.Compile: lambda event: f"compiles {event.data.code.name}{_of(event.compile_id)}",
    schema.BackwardCompile: lambda event: f"compiles the backward{_of(event.compile_id)}",
    schema.LockWait: lambda _: "waits for the compile lock",
    schema.FxTrace: lambda event: f"FX trace ({event.data.tracer})",
    schema.GuardMiss: lambda event: f"misses {_code(event.data.code)}",
    schema.Wrapper: lambda event: _call(event.data),
    schema.DenseAttention: lambda event: f"dense attention ({event.data.kind})",
    schema.BlockMask: lambda _: "builds a block mask",
    schema.Autotune: lambda event: f"tunes {event.data.name}",
    schema.ThreadError: lambda event: (
        f"error: {event.data.chain[0].type}" if event.data.chain else "error"
    ),
    schema.Phase: lambda event: event.data.name,
    schema.Memory: lambda event: f"memory {event.data.device}",
    schema.MemoryPeak: lambda event: f"memory peak on {event.data.device}",
    schema.OutOfMemory: lambda event: f"out of memory on {event.data.device}",
    schema.End: lambda _: "the program's exit handlers run",
}

_OWN = frozenset({"code", "context", "entry", "chain", "inputs", "count"})


def point_of(event: schema.Event) -> str:
    """The event's point, such as ``dynamo_compile``."""
    return str(event.__struct_config__.tag)


def name_of(event: schema.Event) -> str:
    """A name for the slice or the instant; of a point that has no words of its own, the point."""
    words = _WORDS.get(type(event))
    return words(event) if words is not None else point_of(event).replace("_", " ")


def args_of(event: schema.Event) -> dict[str, object]:
    """What to tell of an event: its number in the recording, where, and its plain values."""
    args: dict[str, object] = {"seq": event.seq}
    if event.compile_id:
        args["compile_id"] = event.compile_id
    if event.phase:
        args["phase"] = event.phase
    user = next((frame for frame in event.where if frame.user), None)
    if user is not None:
        args["at"] = f"{short_place(user)} {user.function}"
    data: Any = getattr(event, "data", None)
    if data is None:
        return args
    for name in data.__struct_fields__:
        value = getattr(data, name)
        if name not in _OWN and value is not False and value not in (None, "", ()):
            args[name] = _plain(value)
    if getattr(data, "context", None) is not None:
        args["context"] = describe(data.context)
    if getattr(data, "count", 1) != 1:
        args["count"] = data.count
    if isinstance(event, schema.ThreadError) and event.data.chain:
        args["message"] = _cut(event.data.chain[0].message)
    return args


def memory_values(event: schema.Memory) -> dict[str, int]:
    """What a sample of memory shows of its device, in bytes."""
    data = event.data
    # What is reserved holds what is allocated; on the CPU nothing is reserved.
    return {"allocated": data.allocated} | ({"reserved": data.reserved} if data.reserved else {})


def _of(compile_id: str | None) -> str:
    return f" [{compile_id}]" if compile_id else ""


def _code(code: Any) -> str:  # noqa: ANN401 - a Code, or None where it is not known
    return code.name if code is not None else "code that is not known"


def _call(data: calls.WrapperData) -> str:
    if data.fx_flag:
        return f"finds the FX flag set, calling {_code(data.code)}"
    return f"{'first calls' if data.first else 'calls'} {_code(data.code)}"


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple | list) and all(isinstance(item, bool | int) for item in value):
        return list(value)
    if isinstance(value, tuple | list):
        return _cut("; ".join(str(item) for item in value))
    return _cut(str(value))


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[:LONGEST]} ..."
