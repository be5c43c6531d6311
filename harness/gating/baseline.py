"""The baseline, a committed TOML file: what each scenario gave, and what is known to be bad.

An entry belongs to a scenario (and of a pytest selection to one test), a torch minor version, a
kind of device and a schedule. One whose result is not what the suite expects is known to be bad: it
names an upstream reference and the day on which it has to be looked at again.
"""

import datetime as dt
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dflash_min.errors import UsageError
from harness.events.files import write_whole
from harness.gating.tables import check_keys, convert, header_lines, read_toml

BASELINE_SCHEMA = 1
_HEAD = "# Written by python -m harness.gate --update-baseline; upstream and expires are yours.\n"


class Key(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What an entry belongs to. ``torch``: such as ``2.13``; ``device``: ``cpu`` or a GPU's name.

    ``test``: the node id within a pytest selection; empty for a spec.
    """

    scenario: str
    test: str = ""
    torch: str
    device: str
    schedule: str = ""


class BaselineEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry.

    Attributes:
        scenario, test, torch, device, schedule: its ``Key``.
        result: ``passed``, ``failed``, ``clean``, ``CR101+CR301``, ...
        upstream: where the defect that makes it bad is known; needed for a bad result.
        expires: the first day on which the entry no longer holds; needed for a bad result.
        ratio, tolerance: of a performance entry: b's figure in a's, and by what share of itself
            it may differ.
        recorded, commit: when, and at which commit, it was last seen like this.
    """

    scenario: Annotated[str, msgspec.Meta(min_length=1)]
    test: str = ""
    torch: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]
    device: Annotated[str, msgspec.Meta(min_length=1)]
    schedule: str = ""
    result: Annotated[str, msgspec.Meta(min_length=1)]
    upstream: str = ""
    expires: dt.date | None = None
    ratio: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tolerance: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    recorded: dt.date | None = None
    commit: str = ""

    @property
    def key(self) -> Key:
        """What it belongs to."""
        return Key(
            scenario=self.scenario,
            test=self.test,
            torch=self.torch,
            device=self.device,
            schedule=self.schedule,
        )


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal[1]


@dataclass(frozen=True)
class Baseline:
    """All entries of a baseline, and the lines of the file at which they begin."""

    path: Path
    entries: Mapping[Key, BaselineEntry] = field(default_factory=dict)
    lines: Mapping[Key, int] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """``file:line`` of an entry."""
        return f"{self.path}:{self.lines.get(key, 1)}"

    def check(self, right: Mapping[str, str]) -> None:
        """Refuse an entry that is known to be bad and does not say where and until when.

        Args:
            right: the result that is right, by scenario.

        Raises:
            UsageError: with the entry's line.
        """
        for key, entry in self.entries.items():
            fine = {right.get(key.scenario, entry.result), "skipped"}
            if entry.result in fine or (entry.upstream.strip() and entry.expires is not None):
                continue
            raise UsageError(
                f"{self.place(key)}: {key.scenario} is known as {entry.result}, so that its entry "
                "needs upstream, a reference, and expires, a date"
            )


def read_baseline(path: Path) -> Baseline:
    """Read a baseline; one that is not there is empty.

    Raises:
        UsageError: it is damaged, or names one thing twice; with the line.
    """
    if not path.exists():
        return Baseline(path)
    text, raw = read_toml(path)
    check_keys(raw, ("schema", "entry"), path)
    convert({k: v for k, v in raw.items() if k == "schema"}, _Head, path, 1, "baseline")
    listed = raw.get("entry", [])
    if not isinstance(listed, list):
        raise UsageError(f"{path}: entries are [[entry]] tables")
    starts = header_lines(text, "[[entry]]")
    starts += [1] * (len(listed) - len(starts))  # written as inline tables
    entries: dict[Key, BaselineEntry] = {}
    lines: dict[Key, int] = {}
    for table, line in zip(listed, starts, strict=False):
        entry = convert(table, BaselineEntry, path, line, "[[entry]]")
        if entry.key in entries:
            raise UsageError(
                f"{path}:{line}: {entry.scenario} {entry.test} has an entry already, at line "
                f"{lines[entry.key]}, for the same torch, device and schedule"
            )
        entries[entry.key], lines[entry.key] = entry, line
    return Baseline(path, entries, lines)


def to_toml(entries: Iterable[BaselineEntry]) -> str:
    """The file's text, entries in the order of their keys."""
    parts = [f"{_HEAD}schema = {BASELINE_SCHEMA}\n"]
    for entry in sorted(entries, key=lambda entry: entry.key):
        lines = ["\n[[entry]]\n"]
        for name in BaselineEntry.__struct_fields__:
            value = getattr(entry, name)
            if value is None or value == "":
                continue
            lines.append(f"{name} = {_value(value)}\n")
        parts.append("".join(lines))
    return "".join(parts)


def _value(value: str | float | dt.date) -> str:
    if isinstance(value, dt.date):
        return value.isoformat()
    # A TOML basic string is a JSON one, but for DEL, which it wants escaped (toml.io, v1.0.0).
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(float(value))


def differences(old: str, new: str, name: str) -> str:
    """What ``--update-baseline`` would change, as a unified diff; empty if nothing."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name, f"{name} (new)"
    )
    return "".join(lines)


def write_baseline(path: Path, text: str) -> None:
    """Write the file whole. Raises UsageError."""
    try:
        write_whole(path, text, mode=0o666)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}") from error
