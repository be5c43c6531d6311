"""What one run shows of a warm-up: each call that was made or asked about, and what came of it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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
        raced: another thread's entry may have come between the answers and the call.
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
        """The call went another way than the entries had answered, and nobody interfered."""
        return self.ran and not self.raced and self.missed == (self.fits or self.fits_late)

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
    tid: int
    begun: int
    ended: int | None = None


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
            self.compiles[key].ended = event.t_ns

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
        following: dict[int, int] = {}
        for call in reversed(calls):
            tid, t = call.event.tid, call.event.t_ns
            until = following.get(tid, t + _MOMENT_NS)
            call.raced = bool(call.event.data.compiling_tids) or any(
                compile_.tid != tid and _is_beside(call, compile_id, compile_.ended, until)
                for compile_id, compile_ in compiles.items()
            )
            following[tid] = t


#: A compile that ended longer before a question, or after a thread's last one, is not beside it.
_MOMENT_NS = 1_000_000_000


def _is_beside(call: Call, compile_id: str, ended: int | None, until: int) -> bool:
    """Whether the entry of a compile can have come after the question and before the call.

    Entries are read before the question is recorded, and dynamo adds one only when its compile has
    ended and another thread may have gone on (in C, once ``_compile`` and its lock are left). So a
    compile that ended a moment before the question counts too, unless its entry was asked.
    """
    if ended is None:
        return False
    t = call.event.t_ns
    if ended >= t:
        return ended <= until
    asked = {answer.compile_id for answer in call.event.data.answers}
    return ended >= t - _MOMENT_NS and compile_id not in asked


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
