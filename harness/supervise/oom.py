"""Kills by the kernel's out-of-memory killer, counted before and after a run.

The kernel tells the victim nothing but SIGKILL. It counts such kills in the victim's memory cgroup,
as ``oom_kill`` in ``memory.events`` (cgroup v2) and in ``memory.oom_control`` (v1), and for the
whole machine in ``/proc/vmstat`` (Linux: Documentation/admin-guide/cgroup-v2.rst,
mm/memcontrol.c, mm/vmstat.c).
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_V1_FILE, _V2_FILE = "memory.oom_control", "memory.events"


@dataclass(frozen=True)
class OomCounter:
    """A file of the kernel's that counts kills, and what it said first."""

    path: Path
    before: int

    def kills(self) -> int | None:
        """How many there were since; None if it cannot be read any more."""
        now = _read(self.path)
        return None if now is None else max(now - self.before, 0)


def find_counter(proc: Path = Path("/proc")) -> OomCounter | None:
    """Find the counter for this process's memory cgroup, which what it starts inherits.

    Args:
        proc: the proc file system.

    Returns:
        The nearest counter that can be read: the cgroup's, that of one above it, or else the
        machine's; None where there is none.
    """
    for path in [*_candidates(proc), proc / "vmstat"]:
        before = _read(path)
        if before is not None:
            return OomCounter(path, before)
    return None


def _candidates(proc: Path) -> Iterator[Path]:
    groups = _groups(proc)
    for mount, root, name, group in _mounts(proc, groups):
        # In a container the mount shows a part of the tree: what lies above ``root`` is not there.
        inside = group.removeprefix(root) if root != "/" else group
        folder = mount / inside.strip("/")
        for place in (folder, *folder.parents):
            if place.is_relative_to(mount):
                yield place / name


def _groups(proc: Path) -> dict[str, str]:
    """This process's cgroup for memory, by version: ``{"v1": path, "v2": path}``."""
    groups: dict[str, str] = {}
    # Lines are hierarchy:controllers:path (cgroups(7)).
    for line in _lines(proc / "self" / "cgroup"):
        fields = line.split(":", 2)
        if len(fields) == 3:
            if "memory" in fields[1].split(","):
                groups["v1"] = fields[2]
            elif fields[0] == "0" and not fields[1]:
                groups["v2"] = fields[2]
    return groups


def _mounts(proc: Path, groups: dict[str, str]) -> Iterator[tuple[Path, str, str, str]]:
    """Mount point, mounted root, counter's name and our cgroup for each fitting hierarchy."""
    # ID parent major:minor root mount-point options ... - type source super-options (proc(5)).
    for line in _lines(proc / "self" / "mountinfo"):
        left, _, right = line.partition(" - ")
        where, kind = left.split(), right.split()
        if len(where) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup" and "memory" in kind[2].split(",") and "v1" in groups:
            yield Path(where[4]), where[3], _V1_FILE, groups["v1"]
        elif kind[0] == "cgroup2" and "v2" in groups:
            yield Path(where[4]), where[3], _V2_FILE, groups["v2"]


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _read(path: Path) -> int | None:
    try:
        match = _KILLS.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return None if match is None else int(match[1])
