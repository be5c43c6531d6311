"""What a run can be asked to do: a plan of holds, random priorities or random delays."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_min.errors import UsageError
from harness.child.schedule.order import Hold
from harness.events.files import write_whole

PLAN_SCHEMA = 1
MIN_HOLDS, MAX_HOLDS = 2, 6
MAX_THREADS = 4
MAX_DEPTH = 8
_KEYS = frozenset({"schema", "name", "note", "apart", "holds"})


@dataclass(frozen=True)
class Plan:
    """An ordered list of holds; with none, the threads run as they like.

    Attributes:
        holds: none, or 2 to 6 holds of 2 to 4 threads, each ``main``, ``t1`` ... or a letter.
        name: what it is called, such as ``fx-flag``.
        note: what it is for.
        apart: one thread is out of everything that it was inside of at a hold before another
            thread's hold is passed, which is not reached otherwise; for controls.

    Raises:
        UsageError: at construction, for anything else, in one line.
    """

    holds: tuple[Hold, ...] = ()
    name: str = ""
    note: str = ""
    apart: bool = False

    def __post_init__(self) -> None:
        if not self.holds:
            return
        if not MIN_HOLDS <= len(self.holds) <= MAX_HOLDS:
            raise UsageError(
                f"a plan has {MIN_HOLDS} to {MAX_HOLDS} holds, this one has {len(self.holds)}"
            )
        threads = self.threads
        if len(threads) < 2:
            raise UsageError(f"all holds are of {threads[0]}: no thread would wait for another")
        if len(threads) > MAX_THREADS:
            raise UsageError(
                f"a plan has at most {MAX_THREADS} threads, this one has {len(threads)}: "
                f"{', '.join(threads)}"
            )

    @property
    def threads(self) -> tuple[str, ...]:
        """The parts that it names, in order of first appearance."""
        return tuple(dict.fromkeys(hold.thread for hold in self.holds))

    @property
    def texts(self) -> tuple[str, ...]:
        """The holds as they are written."""
        return tuple(str(hold) for hold in self.holds)

    @property
    def strategy(self) -> str:
        """How a run with it is made; see ``Priorities.strategy``."""
        return "given"

    def for_child(self) -> dict[str, Any]:
        """What ``harness.child.schedule.make`` takes."""
        return {"strategy": "holds", "holds": list(self.texts), "apart": self.apart}

    def __str__(self) -> str:
        return (", ".join(self.texts) or "no holds") + (", apart" if self.apart else "")


@dataclass(frozen=True)
class Priorities:
    """Random priorities with change points, for ``harness.child.schedule.priorities``.

    Attributes:
        seed: of the priorities and the change points.
        threads: how many threads there are (n).
        points: how many arrivals a run makes (k).
        depth: how many arrivals have to be in order for the bug to show (d), 1 to 8.

    Raises:
        UsageError: at construction, for numbers that cannot be.
    """

    seed: int
    threads: int
    points: int
    depth: int = 3

    def __post_init__(self) -> None:
        if self.threads < 1 or self.points < 1:
            raise UsageError("pct needs at least one thread and one arrival at a point")
        if not 1 <= self.depth <= MAX_DEPTH:
            raise UsageError(f"pct's depth is 1 to {MAX_DEPTH}, got {self.depth}")

    @property
    def strategy(self) -> str:
        """``pct``."""
        return "pct"

    def for_child(self) -> dict[str, Any]:
        """What ``harness.child.schedule.make`` takes."""
        return {
            "strategy": "pct",
            "seed": self.seed,
            "threads": self.threads,
            "points": self.points,
            "depth": self.depth,
        }

    def __str__(self) -> str:
        return f"pct, seed {self.seed}, n={self.threads} k={self.points} d={self.depth}"


@dataclass(frozen=True)
class Delays:
    """Random delays, for ``harness.child.schedule.delays``."""

    seed: int

    @property
    def strategy(self) -> str:
        """``chaos``."""
        return "chaos"

    def for_child(self) -> dict[str, Any]:
        """What ``harness.child.schedule.make`` takes."""
        return {"strategy": "chaos", "seed": self.seed}

    def __str__(self) -> str:
        return f"chaos, seed {self.seed}"


Schedule = Plan | Priorities | Delays


def parse_plan(
    texts: Iterable[str], *, name: str = "", note: str = "", apart: bool = False
) -> Plan:
    """Make a plan of holds as they are written. Raises UsageError, in one line."""
    try:
        return Plan(tuple(Hold.parse(text) for text in texts), name, note, apart)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


def constraining(holds: Sequence[Hold], plan: Plan) -> Plan:
    """``plan`` with other holds; without any if those make no thread wait for another."""
    threads = {hold.thread for hold in holds}
    return replace(plan, holds=tuple(holds) if len(threads) > 1 else ())


def serial(plan: Plan) -> Plan:
    """The control: the same holds, one thread after the other in order of first appearance.

    The next thread comes to its first hold only once the one before is out of everything.
    """
    holds = tuple(hold for thread in plan.threads for hold in plan.holds if hold.thread == thread)
    name = f"{plan.name.removesuffix('-serial')}-serial" if plan.name else "serial"
    return replace(plan, holds=holds, name=name, apart=True)


def lettered(plan: Plan) -> Plan:
    """The same plan for whichever threads come first: letters for ``t1``, ``t2`` ... ."""
    taken = {thread for thread in plan.threads if len(thread) == 1}
    letters = (chr(n) for n in range(ord("A"), ord("Z") + 1) if chr(n) not in taken)
    names = {thread: next(letters) if thread.startswith("t") else thread for thread in plan.threads}
    return replace(plan, holds=tuple(replace(h, thread=names[h.thread]) for h in plan.holds))


def read_plan(path: Path) -> Plan:
    """Read a TOML plan file. Raises UsageError, naming the file and what is wrong with it."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"plan {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"plan {path}: {error}") from error
    try:
        return _plan(fields)
    except UsageError as error:
        raise UsageError(f"plan {path}: {error}") from error


def write_plan(path: Path, plan: Plan) -> None:
    """Write a TOML plan file. Raises OSError."""
    lines = [f"schema = {PLAN_SCHEMA}"]
    lines += [f"{key} = {_toml(text)}" for key in ("name", "note") if (text := getattr(plan, key))]
    lines += ["apart = true"] if plan.apart else []
    lines += ["holds = [", *(f"    {_toml(text)}," for text in plan.texts), "]"]
    write_whole(path, "\n".join(lines) + "\n")


def _plan(fields: Mapping[str, Any]) -> Plan:
    unknown = sorted(fields.keys() - _KEYS)
    if unknown:
        raise UsageError(f"there is no key {unknown[0]}, only {', '.join(sorted(_KEYS))}")
    schema = fields.get("schema", PLAN_SCHEMA)
    if schema != PLAN_SCHEMA:
        raise UsageError(f"it has schema {schema}, this version reads {PLAN_SCHEMA}")
    holds, name, note = fields.get("holds"), fields.get("name", ""), fields.get("note", "")
    apart = fields.get("apart", False)
    if not isinstance(holds, list) or not all(isinstance(text, str) for text in holds):
        raise UsageError("holds is a list of texts such as A:fx_trace:enter")
    if not isinstance(name, str) or not isinstance(note, str):
        raise UsageError("name and note are texts")
    if not isinstance(apart, bool):
        raise UsageError("apart is true or false")
    if not holds:
        raise UsageError("it has no holds")
    return parse_plan(holds, name=name, note=note, apart=apart)


def _toml(text: str) -> str:
    """A TOML basic string: JSON's escapes, but for one control character that JSON leaves as is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
