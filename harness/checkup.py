"""What is live on an installation, found out by watching a small program in it."""

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_min.errors import UsageError
from harness import selftest
from harness.child.attach import PROBES
from harness.events.ended import Ended
from harness.events.files import CHILD_LOG
from harness.events.schema import CompileDetail, Event, Probe
from harness.exits import ExitCode
from harness.supervise.folder import tail
from harness.supervise.interpreter import Interpreter, check_torch, inspect
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.process import supervise
from harness.supervise.stacks import take_stacks
from harness.timeline.recording import Recording

# What the self-test makes each probe record; the workload probe hears a trainer only.
_SPEAKS = {
    "threads": "thread_start",
    "futures": "thread_error",
    "wrapper": "wrapper",
    "guards": "guard_miss",
    "eager": "eager",
    "stance": "stance",
    "compiles": "dynamo_compile",
    "lock": "lock_wait",
    "fx": "fx_trace",
    "backward": "backward_compile",
    "attention": "dense_attention",
    "block_mask": "block_mask",
    "memory": "memory_peak",
    "invariants": "invariants",
}
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor_", "TRITON_CACHE_DIR": ""}
_MANY_FILES = 10_000


@dataclass(frozen=True)
class ProbeCheck:
    """One probe. ``state`` is ``live`` if it recorded what the self-test did.

    Otherwise it is ``silent`` (installed, but nothing came of it), ``idle`` (had nothing to do), or
    what the probe itself said: ``missing``, ``failed``, ``conflict``.
    """

    name: str
    state: str
    reason: str = ""

    @property
    def works(self) -> bool:
        """Whether a run would not be incomplete for this probe's sake."""
        return self.state in ("live", "idle")


@dataclass(frozen=True)
class Cache:
    """A compile cache that torch uses without the watch. ``files``: how many, up to 10,000."""

    variable: str
    path: str
    files: int


@dataclass(frozen=True)
class Checkup:
    """All that was found. ``*_problem`` is empty where all is well."""

    interpreter: Interpreter
    torch_problem: str
    probes: tuple[ProbeCheck, ...]
    self_test_problem: str
    py_spy_problem: str
    gpus: tuple[str, ...]
    caches: tuple[Cache, ...]

    @property
    def exit_code(self) -> ExitCode:
        """CLEAN if everything a verdict may rest on works, INCOMPLETE otherwise."""
        works = all(probe.works for probe in self.probes)
        problem = self.torch_problem or self.self_test_problem
        return ExitCode.CLEAN if works and not problem else ExitCode.INCOMPLETE

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {"schema": 1, **asdict(self), "exit_code": int(self.exit_code)}


def examine(python: str, *, timeout_s: float, disabled_probes: tuple[str, ...] = ()) -> Checkup:
    """Run the self-test under the watch in an interpreter and read what was recorded.

    Args:
        python: the interpreter.
        timeout_s: how long the self-test may take.
        disabled_probes: probes to leave out.

    Raises:
        UsageError: there is no such interpreter, or it has no torch.
        KeyboardInterrupt: the self-test was interrupted from the keyboard.
    """
    interpreter = inspect(python)
    torch_problem = ""
    try:
        check_torch(interpreter, needed=True)
    except UsageError as error:
        if not interpreter.torch:
            raise
        torch_problem = str(error)  # not a version that was tried; what works is seen below
    with tempfile.TemporaryDirectory(prefix="compile-race-doctor-") as name:
        folder = Path(name)
        launch = Launch(
            command=(python, str(Path(selftest.__file__))),
            folder=folder,
            watch=WatchSettings(disabled_probes=disabled_probes),
            timeout_s=timeout_s,
            log=folder / CHILD_LOG,
        )
        ended = supervise(launch)
        if ended.interrupted:
            raise KeyboardInterrupt
        said = tail(folder / CHILD_LOG, 4096)
        events = list(Recording(folder).events())
        # Looking into this very process needs the same rights as looking into a hung child.
        stacks = take_stacks(os.getpid(), folder)
    return Checkup(
        interpreter=interpreter,
        torch_problem=torch_problem,
        probes=tuple(_check(name, events) for name in PROBES),
        self_test_problem=_self_test_problem(ended, events, said),
        py_spy_problem="" if stacks.taken else stacks.text,
        gpus=tuple(_answer(said).get("gpus", ())),
        caches=tuple(_caches()),
    )


def _check(name: str, events: Sequence[Event]) -> ProbeCheck:
    state, reason = "missing", "the watch did not get as far as this probe"
    for event in events:
        if isinstance(event, Probe) and event.data.name == name:
            state, reason = event.data.state, event.data.reason
    point = _SPEAKS.get(name)
    if state == "live" and point and point not in _points(events):
        return ProbeCheck(name, "silent", f"installed, but no {point} was recorded")
    return ProbeCheck(name, state, reason)


def _points(events: Sequence[Event]) -> Collection[str]:
    return {str(event.__struct_config__.tag) for event in events}


def _self_test_problem(ended: Ended, events: Sequence[Event], said: str) -> str:
    last = said.strip().splitlines()[-1:] or [""]
    if ended.child_failure:
        return f"the watch failed: {ended.child_failure.strip().splitlines()[-1]}"
    if ended.deadline_hit:
        return f"it did not end within {ended.timeout_s:.0f} s"
    if ended.signal is not None:
        return f"it died of {ended.signal_name}"
    if ended.exit_code:
        return f"it ended with exit code {ended.exit_code}: {last[0]}"
    for event in events:
        if isinstance(event, CompileDetail) and event.data.metrics != event.data.compiles:
            return (
                f"torch's trace log knows of {event.data.metrics} compiles, "
                f"the wrap of _compile of {event.data.compiles}"
            )
    return ""


def _answer(said: str) -> dict[str, Any]:
    for line in reversed(said.splitlines()):
        if line.startswith('{"gpus"'):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return {}


def _caches() -> Iterator[Cache]:
    for variable, prefix in _CACHES.items():
        named = os.environ.get(variable)
        if named:
            path = Path(named)
        elif prefix:
            path = Path(tempfile.gettempdir()) / f"{prefix}{os.environ.get('USER', 'root')}"
        else:
            path = Path.home() / ".triton" / "cache"
        yield Cache(variable, str(path), _count_files(path))


def _count_files(folder: Path) -> int:
    count = 0
    for _, _, files in os.walk(folder):
        count += len(files)
        if count >= _MANY_FILES:
            return _MANY_FILES
    return count
