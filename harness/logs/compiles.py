"""The compiles that a process's texts tell of: by whom, which entries were there, in what order.

Torch's logs name no thread (``torch/_logging/_internal.py`` writes the process id where readers of
its format expect a thread). What they do tell: an entry that passed when it was checked again was
not there when its call began, so another thread had called meanwhile.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.events.values import Context, Frame
from harness.logs.facts import Compiled, Fact, Function, Guards, Place, Recompile
from harness.logs.keeping import Process
from harness.timeline.reasons import Guard, parse

FIRST = "the first caller"
LATER = "a later caller"
WORKER = "a worker thread"
_UNNAMED = "unnamed "
UNNAMED = (FIRST, LATER, WORKER, _UNNAMED)
"""How the names begin that threads are given here which a text does not name."""
_ENTRY = re.compile(r"(\d+)/(\d+)(?:_\d+)?$")


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A compile, or a call that was refused one.

    Attributes:
        thread: who made it: a name, or a word for one that the text does not name.
        since: the first entry, by number, that was not there when the call began; None: the call
            found all of them.
        found_nothing: no entry at all was there when the call began.
        implied: no line tells of it but that another one names its entry.
    """

    place: Place
    function: Function
    number: str
    thread: str
    reasons: tuple[str, ...] = ()
    error: str = ""
    where: tuple[Frame, ...] = ()
    guards: Guards | None = None
    context: Context | None = None
    since: str | None = None
    found_nothing: bool = False
    implied: bool = False
    ended: bool = True

    @property
    def early(self) -> bool:
        """Whether its call began before an earlier compile had ended."""
        return self.since is not None


@dataclass(slots=True)
class Attempts:
    """A process's compiles. ``main_is_named``: the texts tell which one was the main thread's."""

    by_fact: dict[int, list[Attempt]] = field(default_factory=dict)
    main_is_named: bool = False
    _early: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))

    def at(self, fact: Fact) -> list[Attempt]:
        """The compiles that a fact tells of, in order."""
        return self.by_fact.get(id(fact), [])

    def began_before_end_of(self, attempt: Attempt) -> list[Attempt]:
        """Compiles whose calls began before this one had ended."""
        return self._early.get(attempt.number, [])

    def note_early(self, attempt: Attempt) -> None:
        """Remember that a call began before the end of the compile ``attempt.since``."""
        if attempt.since is not None:
            self._early[attempt.since].append(attempt)


def attempts_of(process: Process) -> Attempts:
    """The compiles of a process, each with who made it as far as that is told."""
    guards = {fact.number: fact for fact in process.facts if isinstance(fact, Guards)}
    traced = {fact.number for fact in process.facts if isinstance(fact, Compiled)}
    told: list[tuple[Fact, Attempt]] = []
    numbers = _Numbers()
    for fact in process.facts:
        if isinstance(fact, Compiled):
            told.append((fact, _traced(fact)))
        elif isinstance(fact, Recompile) and fact.number not in (traced or {""}):
            told.append((fact, _logged(fact, numbers)))
    attempts = Attempts()
    known = {attempt.number for _, attempt in told}
    for fact, attempt in told:
        implied = _implied(attempt, known)
        known |= {each.number for each in implied}
        attempts.by_fact.setdefault(id(fact), []).extend([*implied, attempt])
    every = [each for own in attempts.by_fact.values() for each in own]
    for each in every:
        each.guards = guards.get(each.number)
        attempts.note_early(each)
    _with_contexts(every)
    _with_threads(every, attempts)
    return attempts


def _traced(fact: Compiled) -> Attempt:
    since, nothing = _since(fact.reasons)
    return Attempt(
        place=fact.place,
        function=fact.function,
        number=fact.number,
        thread="",
        reasons=fact.reasons,
        error=fact.error,
        where=fact.where,
        since=since,
        found_nothing=nothing,
        ended=fact.ended,
    )


def _logged(fact: Recompile, numbers: "_Numbers") -> Attempt:
    since, nothing = _since(fact.reasons)
    return Attempt(
        place=fact.place,
        function=fact.function,
        number=fact.number or numbers.next_of(fact),
        thread=fact.thread,
        reasons=fact.reasons,
        error=fact.refused,
        since=since,
        found_nothing=nothing,
    )


class _Numbers:
    """Numbers for recompiles whose lines have lost their prefix, after the entries they name."""

    def __init__(self) -> None:
        self._last: dict[str, int] = defaultdict(int)
        self._frames: dict[Function, str] = {}

    def next_of(self, fact: Recompile) -> str:
        """The number after the highest that the reasons name, or that was given before."""
        entries = [split for reason in fact.reasons if (split := _split(parse(reason).entry))]
        frame = entries[0][0] if entries else self._frames.setdefault(
            fact.function, f"?{len(self._frames)}"
        )  # fmt: skip
        highest = max((number for _, number in entries), default=0)
        self._last[frame] = max(self._last[frame], highest) + 1
        return f"{frame}/{self._last[frame]}"


def _split(entry: str | None) -> tuple[str, int] | None:
    found = _ENTRY.match(entry or "")
    return (found[1], int(found[2][:9])) if found else None


def _since(reasons: Iterable[str]) -> tuple[str | None, bool]:
    """The first entry that passed when it was checked again, and whether all of them did."""
    parsed = [parse(reason) for reason in reasons]
    late = [reason for reason in parsed if Guard.UNEXPECTED in reason.guards]
    entries = [(split[1], reason.entry) for reason in late if (split := _split(reason.entry))]
    since = min(entries, default=(0, None))[1]
    return since, since is not None and len(late) == len(parsed)


_MAX_IMPLIED = 64


def _implied(attempt: Attempt, known: set[str]) -> list[Attempt]:
    """Entries that a compile's reasons name, and that no line before tells of."""
    entries = {parse(reason).entry for reason in attempt.reasons}
    missing = sorted(
        (split, entry)
        for entry in entries
        if entry is not None and entry not in known and (split := _split(entry)) is not None
    )
    return [
        Attempt(
            place=attempt.place, function=attempt.function, number=entry, thread="", implied=True
        )
        for _, entry in missing[:_MAX_IMPLIED]
    ]


def _with_threads(every: list[Attempt], attempts: Attempts) -> None:
    """Name each compile's thread: as told, or else by what sets it apart from the others."""
    workers = [each for each in every if _in_worker(each)]
    attempts.main_is_named = bool(workers) or any(e.thread == "MainThread" for e in every)
    apart = 1
    for each in every:
        if each.thread:
            continue
        word = "worker" if _in_worker(each) else "caller"
        if each.early:
            apart += 1
            each.thread = f"{_UNNAMED}{word} {apart}"
        elif _in_worker(each):
            each.thread = WORKER
        elif workers or not each.reasons:
            each.thread = FIRST
        else:
            each.thread = LATER


def _in_worker(attempt: Attempt) -> bool:
    """Whether a thread of Python's made it: its stack begins in ``threading``."""
    return any(
        frame.function == "_bootstrap" and frame.file.endswith("threading.py")
        for frame in attempt.where[-1:]
    )


_DEVICES = {0: "cpu", 1: "cuda"}
_DTYPES = {5: "torch.float16", 6: "torch.float32", 15: "torch.bfloat16"}
"""Numbers of ``c10::DeviceType`` and ``c10::ScalarType``."""


def _with_contexts(every: list[Attempt]) -> None:
    """Read the contexts off the guards, for functions of which those of all compiles are known."""
    by_frame: dict[Function, list[Attempt]] = defaultdict(list)
    for each in every:
        by_frame[each.function].append(each)
    for own in by_frame.values():
        contexts = [_context(each.guards.state) if each.guards else None for each in own]
        if None not in contexts:
            for each, context in zip(own, contexts, strict=True):
                each.context = context


def _context(state: str) -> Context | None:
    try:
        raw = json.loads(state)
        cast = raw.get("autocast_state", {})
        autocast = {
            _DEVICES[at]: (bool(on), _DTYPES.get(dtype, str(dtype)))
            for at, (on, dtype) in enumerate(
                zip(cast.get("enabled", []), cast.get("dtype", []), strict=False)
            )
            if at in _DEVICES
        }
        return Context(
            grad_mode=bool(raw["grad_mode"]),
            autocast=autocast,
            autocast_cache=bool(cast.get("cached_enabled", True)),
            num_threads=int(raw.get("num_threads", 0)) % (1 << 31),
            deterministic=bool(raw.get("deterministic_algorithms", False)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
