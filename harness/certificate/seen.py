"""What one run shows of a warm-up: each call that was made or asked about, and what came of it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import msgspec

from harness.causes.versions import CONFIG_PER_THREAD, UNKNOWN
from harness.events import schema
from harness.events.calls import ArgumentData
from harness.events.schema import BaseEvent
from harness.events.values import Code, TensorInput
from harness.timeline import contexts
from harness.timeline.recording import Recording
from harness.timeline.timeline import torch_version

_WARMUP, _DONE = "warmup", "warmup_done"


@dataclass
class Call:
    """One combination of code, context and inputs in one thread, asked about once.

    Attributes:
        event: the question with its answers.
        late: it came after the warm-up.
        fits: an entry that the warm-up made fits.
        fits_late: only an entry that was made after the warm-up fits.
        missed: the call that was then made missed, compiled, or ran eager.
        raced: an entry that another thread made may have come between the answers and the call.
        backward: its thread called backward, before or after.
    """

    event: schema.Asked
    late: bool = False
    fits: bool = False
    fits_late: bool = False
    missed: bool = False
    raced: bool = False
    backward: bool = False

    @property
    def ran(self) -> bool:
        """The thread made the call; else it only asked."""
        return self.event.data.ran

    @property
    def disagreed(self) -> bool:
        """The call went another way than the entries had answered, and nobody interfered.

        Another thread's new entry explains a hit that was not foretold, and never a miss where an
        entry fitted: adding one takes none away.
        """
        if self.fits or self.fits_late:
            return self.ran and self.missed
        return self.ran and not self.missed and not self.raced

    @property
    def guards(self) -> tuple[str, ...]:
        """What rejected it, of each entry that did."""
        return tuple(dict.fromkeys(a.guard for a in self.event.data.answers if not a.fits))


@dataclass
class Seen:
    """The calls of a run's main process.

    Attributes:
        calls: in the order of the recording.
        marked: the program, or the trainer, said where its warm-up ended.
        said_done: the program did, by ``harness.warmup_done``.
        left_out: so many questions, at least, were not recorded, since there were so many.
    """

    calls: list[Call] = field(default_factory=list)
    left_out: int = 0
    marked: bool = False
    said_done: bool = False


def seen(recording: Recording) -> Seen:
    """Read a run that was asked about (``WatchSettings.ask``).

    The warm-up ends where the program says so; else, for each code object, where a second thread
    comes to call it. A miss belongs to the last call before it that its thread asked about.

    Raises:
        OSError: the folder cannot be read.
    """
    reader = _Reader()
    for event in recording.events():
        reader.add(event)
    return reader.finish()


@dataclass
class _Compile:
    """A compile; ``added``: it made an entry; ``waiting``: see ``CompileData``."""

    tid: int
    begun: int
    added: bool = False
    waiting: tuple[int, ...] = ()
    other_backends: tuple[str, ...] = ()


@dataclass
class _Reader:
    pid: int | None = None
    one_config: bool = False
    found: Seen = field(default_factory=Seen)
    done: int | None = None
    backward: set[int] = field(default_factory=set)
    calls: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    compiles: dict[tuple[int, str], _Compile] = field(default_factory=dict)

    def add(self, event: BaseEvent) -> None:
        if self.pid is None and isinstance(event, schema.Header):
            self.pid = event.pid
            self.one_config = UNKNOWN < torch_version(event) < CONFIG_PER_THREAD
        if event.pid != self.pid:
            return
        match event:
            case schema.Phase():
                self._phase(event)
            case schema.Asked():
                call = Call(_without_config(event) if self.one_config else event)
                self.found.calls.append(call)
                self.calls[event.data.code.id].append(call)
            case schema.Compile():
                self._compile(event)
            case schema.GuardMiss() if event.data.code is not None:
                self._missed(event.tid, event.data.code, event.t_ns)
            case schema.Eager():
                self._missed(event.tid, event.data.code, event.data.began_ns or event.t_ns)
            case schema.Backward():
                self.backward.add(event.tid)
            case schema.LeftOut() if event.data.of == "asked":
                self.found.left_out = max(self.found.left_out, event.data.count)

    def finish(self) -> Seen:
        for number, calls in self.calls.items():
            end = self.done if self.done is not None else _second_thread(calls)
            for call in calls:
                call.late = end is not None and call.event.t_ns >= end
                call.backward = call.event.tid in self.backward
                self._judge(call, end)
            self._find_races(number, calls)
        self.found.marked = self.done is not None
        return self.found

    def _phase(self, event: schema.Phase) -> None:
        name, edge = event.data.name, event.edge
        self.found.said_done |= name == _DONE
        if name == _DONE or (name == _WARMUP and edge == "exit"):
            self.done = event.t_ns if self.done is None else self.done

    def _compile(self, event: schema.Compile) -> None:
        key = (event.data.code.id, event.compile_id or "")
        if event.edge == "enter":
            self.compiles[key] = _Compile(event.tid, event.t_ns)
            self._missed(event.tid, event.data.code, event.t_ns)
        elif key in self.compiles:
            compile_ = self.compiles[key]
            compile_.added, compile_.waiting = bool(event.data.ok), event.data.waiting
            compile_.other_backends = event.data.other_backends or ()

    def _missed(self, tid: int, code: Code, t: int) -> None:
        for call in reversed(self.calls.get(code.id, ())):
            if call.event.tid == tid and call.ran and call.event.t_ns <= t:
                call.missed = True
                return

    def _judge(self, call: Call, end: int | None) -> None:
        """Tell entries of the warm-up from later ones among those that fit."""
        code = call.event.data.code.id
        fitting = [a.compile_id for a in call.event.data.answers if a.fits]
        made = [self.compiles.get((code, compile_id)) for compile_id in fitting]
        # An entry whose compile is not recorded was made before anything was: a cache's, say.
        early = [c for c in made if c is None or end is None or c.begun < end]
        call.fits = bool(early)
        call.fits_late = bool(fitting) and not early

    def _find_races(self, number: int, calls: list[Call]) -> None:
        compiles = {i: c for (code, i), c in self.compiles.items() if code == number}
        for call in calls:
            call.raced = any(
                _may_come_between(call, compile_id, compiles)
                and not _of_another_backend(call, compile_id, compiles)
                for compile_id in compiles
            )


def _may_come_between(call: Call, compile_id: str, compiles: Mapping[str, _Compile]) -> bool:
    """Whether the entry of a compile may have come after the answers and before the lookup.

    Either the call was not looked up yet when the compile ended, or the compile had ended when the
    entries were read, and its own was still to be added (``harness.child.lookups``). One that
    failed, or whose frame was skipped, adds none.
    """
    compile_, data = compiles[compile_id], call.event.data
    if not compile_.added or compile_.tid == call.event.tid:
        return False
    if any(answer.compile_id == compile_id for answer in data.answers):
        return False
    return compile_id in data.adding or data.number in compile_.waiting


def _of_another_backend(call: Call, compile_id: str, compiles: Mapping[str, _Compile]) -> bool:
    """Whether a compile was for another backend than the call, so that its entry is not asked.

    A compile says which entries before it were made for another backend. The entries that were
    asked are of the call's, or of several where that is not known. Then, where none was asked and
    where their compiles were not seen, a compile for another backend is not told apart: it excuses
    the call.
    """
    asked = {answer.compile_id for answer in call.event.data.answers}

    def differ(one: str, other: str) -> bool:
        return any(
            there in compiles[here].other_backends
            for here, there in ((one, other), (other, one))
            if here in compiles
        )

    if any(differ(one, other) for one, other in combinations(asked, 2)):
        return False
    return any(differ(compile_id, other) for other in asked)


def _without_config(event: schema.Asked) -> schema.Asked:
    """The question without torch's config, where that is one for the process.

    It is no thread's own then, and what it holds during a call can be what ``dynamic=`` of another
    thread's call has put there for the time of that.
    """
    context = msgspec.structs.replace(event.data.context, config={})
    return msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, context=context))


def _second_thread(calls: Iterable[Call]) -> int | None:
    first: int | None = None
    for call in calls:
        first = call.event.tid if first is None else first
        if call.event.tid != first:
            return call.event.t_ns
    return None


def context_of(call: Call) -> str:
    """The context of a call in words."""
    data = call.event.data
    parts = [contexts.describe(data.context)]
    parts += [f"dispatch modes {', '.join(data.dispatch_modes)}"] if data.dispatch_modes else []
    parts += [f"stance {data.stance}"] if data.stance else []
    config = sorted(data.context.config.items())
    parts += ["config " + ", ".join(f"{name}={value}" for name, value in config)] if config else []
    return ", ".join(parts)


def inputs_of(call: Call) -> str:
    """The tensors and plain values of a call in words, its device left out."""
    data = call.event.data
    parts = [_tensor(tensor) for tensor in data.inputs]
    parts += [f"{a.name}={a.text}" for a in data.arguments if a.kind == "value"]
    return ", ".join(parts) or "no tensors"


def device_of(call: Call) -> str:
    """Where a call's tensors are."""
    devices = dict.fromkeys(tensor.device for tensor in call.event.data.inputs)
    return ", ".join(devices) or "none"


def arguments_of(call: Call) -> Iterator[tuple[ArgumentData, TensorInput | None]]:
    """Each argument, with its tensor if it is one."""
    tensors = {tensor.name: tensor for tensor in call.event.data.inputs}
    for argument in call.event.data.arguments:
        yield argument, tensors.get(argument.name)


def _tensor(tensor: TensorInput) -> str:
    grad = " grad" if tensor.requires_grad else ""
    return f"{tensor.name} {list(tensor.shape)} {tensor.dtype.removeprefix('torch.')}{grad}"
