"""What the events about memory say. Sizes are bytes; a device is named as torch prints it."""

from typing import Literal

import msgspec

from harness.events.values import Int

Doing = Literal["", "dense_attention", "dense_backward", "reference_attention", "block_mask"]


class MemoryData(msgspec.Struct, frozen=True, kw_only=True):
    """What is in use on one device.

    On ``cpu`` it is the process's resident set, and nothing is reserved. Elsewhere it is what the
    caching allocator says; the peaks are since the process began, or since it reset them.
    ``total``: the device's own memory; 0 if it is not known.
    """

    device: str
    allocated: Int = 0
    reserved: Int = 0
    peak_allocated: Int = 0
    peak_reserved: Int = 0
    total: Int = 0


class MemoryPeakData(msgspec.Struct, frozen=True, kw_only=True):
    """The most that was in use on one device in the run, in a phase, or in one dense call.

    ``before``: in use when it began. ``exact``: the peak of the run rose in it, so it is ``peak``;
    otherwise ``peak`` is the most that was seen. What other threads used meanwhile is in it.
    """

    device: str
    scope: Literal["program", "phase", "dense_attention"]
    name: str = ""
    before: Int = 0
    peak: Int = 0
    peak_reserved: Int = 0
    total: Int = 0
    exact: bool = True
    count: Int = 1


class MemoryCapData(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on a device's memory that was set for the program, and ``by`` what."""

    device: str
    bytes: Int
    by: str


class OutOfMemoryData(msgspec.Struct, frozen=True, kw_only=True):
    """A request for memory that failed.

    ``asked`` is exact on ``cpu``, and as torch's text rounds it, or a multiple of 2 MiB, elsewhere.
    ``free``: what the device had left for everybody. ``cap``: the bound that the process was under.
    ``doing``: what the nearest frame of ``flex_attention``'s was there for, and ``sizes`` are its
    B, H, Q and KV. ``seen`` by the ``allocator``'s observer or from the ``error``, whose number is
    ``error``.
    """

    device: str
    asked: Int | None = None
    free: Int | None = None
    total: Int | None = None
    allocated: Int | None = None
    reserved: Int | None = None
    cap: Int | None = None
    doing: Doing = ""
    sizes: tuple[Int, ...] = ()
    dtype: str = ""
    element_size: Int = 0
    seen: Literal["allocator", "error"] = "error"
    error: Int | None = None
    count: Int = 1


def size(number: int) -> str:
    """Bytes for people: ``512 MiB``, ``1.5 GiB``."""
    amount = float(number)
    for unit in ("bytes", "KiB", "MiB"):
        if round(amount) < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
