"""Values that events and reports are made of."""

from typing import Annotated, Literal

import msgspec

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of 64 bits: JSON has no bound, and a damaged line must not bring larger ones in."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One stack frame; ``user`` is false for torch, the standard library and the harness."""

    file: str
    line: Int
    function: str
    user: bool


class Code(msgspec.Struct, frozen=True):
    """A code object that dynamo compiles, numbered by the recorder in order of appearance.

    Two lambdas on one source line share file, line and name but not ``id``. ``internal`` marks
    functions that torch compiles for its own use (uncompiled ``flex_attention`` does), which are
    not the program's.
    """

    id: Int
    name: str
    file: str
    line: Int
    internal: bool = False


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What dynamo guards on besides the inputs' values, as one thread sees it.

    ``autocast`` maps a device type to ``[enabled, dtype]``; ``config`` holds the
    ``torch._dynamo.config`` values that differ from their defaults *in this thread*.
    """

    grad_mode: bool
    inference_mode: bool = False
    autocast: dict[str, tuple[bool, str]] = {}
    autocast_cache: bool = True
    torch_function: bool = True
    torch_function_modes: tuple[str, ...] = ()
    num_threads: Int = 0
    default_dtype: str = ""
    default_device: str = ""
    deterministic: bool = False
    numeric_flags: dict[str, bool | str | Int] = {}
    current_device: Int | None = None
    config: dict[str, bool | Int | float | str | None] = {}


class TensorInput(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor among a compiled frame's locals."""

    name: str
    shape: tuple[Int, ...]
    dtype: str
    device: str
    requires_grad: bool = False
    dispatch_keys: str = ""


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled variant of a code object. ``digest`` is a hash of the whole guard text.

    ``global_state`` is the JSON that the ``GLOBAL_STATE`` guard prints; ``guards`` are the guard
    lines, cut to a bounded number.
    """

    compile_id: str | None = None
    digest: str
    global_state: dict[str, msgspec.Raw] | None = None
    guards: tuple[str, ...] = ()


class ErrorLink(msgspec.Struct, frozen=True, kw_only=True):
    """One exception of a chain: the exception itself, its causes, a group's members.

    ``id`` is the same for the same exception object throughout a recording. ``frames`` run from
    the outermost to the innermost call.
    """

    id: Int
    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    relation: Literal["self", "cause", "context", "member"] = "self"
