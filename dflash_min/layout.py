"""Which device each target thread and each drafter thread works on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from dflash_min.errors import UsageError

DeviceChoice = Literal["auto", "cpu", "cuda"]
DeviceType = Literal["cpu", "cuda"]

_DEFAULT_DRAFTERS: Final = 3

MAX_THREADS: Final = 512
"""Drafters at most, and targets at most: each is a thread with weights and queues of its own."""


@dataclass(frozen=True)
class Layout:
    """The torch device of every thread, in thread order."""

    targets: tuple[str, ...]
    drafters: tuple[str, ...]


def pick_device(choice: DeviceChoice, named: frozenset[str], gpus: int) -> DeviceType:
    """Choose between CPU and GPUs.

    Args:
        choice: what the user said.
        named: the devices that the user placed threads on.
        gpus: number of visible GPUs.

    Raises:
        UsageError: if GPUs were asked for and none is visible.
    """
    if choice == "cuda" and gpus == 0:
        raise UsageError("--device cuda: no GPU is visible")
    if choice == "auto":
        return "cuda" if gpus and named != {"cpu"} else "cpu"
    return choice


def deal(
    device: DeviceType,
    gpus: int,
    *,
    threads: int | None,
    counts: str | None,
    targets: tuple[str, ...] | None,
    drafters: tuple[str, ...] | None,
) -> Layout:
    """Place every thread, by name where the user named devices and round robin elsewhere.

    With no counts given there are three drafters, and as many targets as leave each drafter a GPU
    of its own (at least one). Roles that are not placed by name are dealt, targets first, over the
    devices that no name took, or over all of them if every one is taken.

    Args:
        device: what `pick_device` returned.
        gpus: number of visible GPUs.
        threads: number of drafter threads.
        counts: "TARGETS+DRAFTERS".
        targets: devices of the target threads.
        drafters: devices of the drafter threads.

    Raises:
        UsageError: for a name that is no visible device of this kind, counts that disagree, or
            more threads than `MAX_THREADS`.
    """
    _check_names("--targets", targets, device, gpus)
    _check_names("--drafters", drafters, device, gpus)
    said_targets, said_drafters = _parse_counts(counts)
    n_drafters = _agreed(
        "drafters",
        {
            "--threads": threads,
            f"--layout {counts}": said_drafters,
            "--drafters": None if drafters is None else len(drafters),
        },
        otherwise=_DEFAULT_DRAFTERS,
    )
    n_targets = _agreed(
        "targets",
        {
            f"--layout {counts}": said_targets,
            "--targets": None if targets is None else len(targets),
        },
        otherwise=max(1, gpus - n_drafters) if device == "cuda" else 1,
    )
    visible = ["cpu"] if device == "cpu" else [f"cuda:{i}" for i in range(gpus)]
    taken = {*(targets or ()), *(drafters or ())}
    free = [name for name in visible if name not in taken] or visible
    open_targets = n_targets if targets is None else 0
    dealt = tuple(free[i % len(free)] for i in range(open_targets + n_drafters))
    return Layout(
        targets=dealt[:open_targets] if targets is None else targets,
        drafters=dealt[open_targets:] if drafters is None else drafters,
    )


def _check_names(flag: str, names: tuple[str, ...] | None, device: DeviceType, gpus: int) -> None:
    if names is None:
        return
    if not names:
        raise UsageError(f"{flag} names no device")
    for name in names:
        if name != "cpu" and not re.fullmatch(r"cuda:(0|[1-9]\d*)", name, re.ASCII):
            raise UsageError(f"{flag}: {name!r} is neither cpu nor cuda:N")
        if name != "cpu" and int(name.removeprefix("cuda:")) >= gpus:
            raise UsageError(f"{flag} names {name}, but the number of visible GPUs is {gpus}")
        if name.split(":", maxsplit=1)[0] != device:
            raise UsageError(f"{flag}: {name} does not fit a run on {device}")


def _parse_counts(counts: str | None) -> tuple[int | None, int | None]:
    if counts is None:
        return None, None
    match = re.fullmatch(r"(\d{1,4})\+(\d{1,4})", counts, re.ASCII)
    if match is None:
        raise UsageError(f"--layout {counts!r} is not TARGETS+DRAFTERS, such as 5+3")
    n_targets, n_drafters = int(match[1]), int(match[2])
    if not n_targets or not n_drafters:
        raise UsageError(f"--layout {counts}: at least one target and one drafter are needed")
    return n_targets, n_drafters


def _agreed(what: str, said: dict[str, int | None], *, otherwise: int) -> int:
    """Return the one count among those said; `otherwise` when none was."""
    given = {flag: count for flag, count in said.items() if count is not None}
    if len(set(given.values())) > 1:
        pairs = ", ".join(f"{flag} says {count}" for flag, count in given.items())
        raise UsageError(f"the number of {what} is not clear: {pairs}")
    for flag, count in given.items():
        if count > MAX_THREADS:
            raise UsageError(f"{flag}: at most {MAX_THREADS} {what} are possible, got {count}")
    return next(iter(given.values()), otherwise)
