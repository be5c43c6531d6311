"""Asks dynamo's cache entries, before each call of compiled code, whether one of them would fit.

``GuardManagerWrapper.check_verbose`` evaluates an entry's guards as dynamo's lookup does, in the
calling thread and with its context, and compiles nothing. So a thread can be asked about the call
that it is about to make and, as a certificate needs, about calls that only other threads made.

This costs every call tens of microseconds and keeps a few calls' arguments alive: it is off unless
the parent asks for it.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, FrameType
from typing import Any

from . import caches, codes, context, lookups, nesting, torch_code
from . import torch_symbols as symbols
from .privacy import mask
from .recorder import Recorder

_MAX_ANSWERS = 16
_MAX_TEXT = 300
_MAX_VALUE = 40
#: Calls of one code object that are kept to be asked about in other threads, and their tensors.
_MAX_KEPT = 8
_MAX_KEPT_BYTES = 64 << 20
#: Combinations that are told apart in one thread; what comes after them counts as left out.
_MAX_SEEN = 2048
_SEEN = "asked"
_VARARGS, _VARKEYWORDS = 0x04, 0x08  # inspect.CO_VARARGS and CO_VARKEYWORDS

Described = dict[str, Any]


@dataclass(frozen=True)
class _Call:
    """A call about to be made, as its frame will see it."""

    code: CodeType
    described: Described
    variables: Described
    inputs: list[Described]
    values: Described

    @cached_property
    def key(self) -> str:
        """Equal for calls whose tensors and plain values dynamo cannot tell apart."""
        return json.dumps([self.inputs, self.values], sort_keys=True)


@dataclass
class _Seen:
    """What the calling thread has asked: for each combination, the entries that it asked."""

    asked: dict[tuple[int, str, str], tuple[str, ...]] = field(default_factory=dict)


def ask_first(
    recorder: Recorder, around: Callable[[FrameType, symbols.Asked], bool] | None
) -> Callable[[FrameType, symbols.Asked], bool]:
    """What ``symbols.listen`` takes, so that entries are asked before each call is let go on.

    ``around`` is what would stand there otherwise; None: nothing.
    """
    asker = Asker(recorder)

    def asking(frame: FrameType, answer: symbols.Asked) -> bool:
        def ask_and_answer(frame: FrameType) -> bool:
            asker.ask(frame)
            return answer(frame)

        return ask_and_answer(frame) if around is None else around(frame, ask_and_answer)

    return asking


class Asker:
    """Asks, and writes one ``asked`` event for each new combination of thread, context and call.

    A combination is asked again once the code object's entries are others. No method raises.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lookups = lookups.begin(recorder)
        self._kept: dict[int, dict[str, _Call]] = {}
        self._kept_bytes = 0
        self._names: dict[int, list[str]] = {}

    def ask(self, frame: FrameType) -> None:
        """Ask about the call that ``frame``, of ``compile_wrapper``, is about to make."""
        try:
            if torch_code.is_compile_wrapper(frame.f_code):
                self._lookups.arrives()
                call = _call_of(frame)
                if call is not None and not call.described["internal"]:
                    self._name(call, frame)
                    self._ask(call, symbols.innermost_backend(frame.f_locals.get("callback")))
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def _name(self, call: _Call, frame: FrameType) -> None:
        number: int = call.described["id"]
        if number not in self._names:
            self._names[number] = _called(frame)

    def _ask(self, call: _Call, backend: object) -> None:
        local = self._recorder.local
        seen = local.scratch.setdefault(_SEEN, _Seen())
        here = _context()
        described = json.dumps(here, sort_keys=True)
        # What others add from here on is among the entries, or among these.
        asked = self._lookups.asks(call.code, call.described)
        adding = self._lookups.adding(call.described)
        entries = _entries(call, backend)
        number: int = call.described["id"]
        ids = tuple(compile_id for compile_id, _ in entries)
        # Another thread's calls first, so that what comes of this call comes after its own event.
        # Other threads keep calls meanwhile: the list is taken at once.
        others = [kept for key, kept in list(self._of(number).items()) if key != call.key]
        for one in (*others, call):
            combination = (number, described, one.key)
            if seen.asked.get(combination) == ids:
                continue
            if combination not in seen.asked and len(seen.asked) >= _MAX_SEEN:
                self._recorder.leave_out("asked")
                continue
            seen.asked[combination] = ids
            ran = {"number": asked, "adding": adding} if one is call else {"ran": False}
            self._tell(one, {**here, **ran}, entries)
        if call.key not in self._of(number):
            self._keep(call)

    def _tell(self, call: _Call, here: Described, entries: list[tuple[str, Any]]) -> None:
        recorder = self._recorder
        busy = nesting.others(recorder.compiling, recorder.local.tid)
        data: Described = {
            "code": call.described,
            **here,
            "inputs": call.inputs,
            "arguments": list(_arguments(call)),
            "called": self._names.get(call.described["id"], []),
            "compiling_tids": busy,
            "answers": list(_answers(entries, call.variables)),
            "entries": len(entries),
        }
        recorder.emit("asked", data)

    def _of(self, number: int) -> dict[str, _Call]:
        return self._kept.get(number, {})

    def _keep(self, call: _Call) -> None:
        kept = self._kept.setdefault(call.described["id"], {})
        if len(kept) >= _MAX_KEPT:
            return
        variables, size = _without_graphs(call.variables)
        if variables is None or self._kept_bytes + size > _MAX_KEPT_BYTES:
            return
        self._kept_bytes += size
        kept[call.key] = _Call(
            call.code,
            call.described,
            variables,
            call.inputs,
            call.values,
        )


def _context() -> Described:
    return {
        "context": context.describe(),
        "dispatch_modes": symbols.dispatch_modes(),
        "stance": symbols.stance()[0],
    }


def _call_of(frame: FrameType) -> _Call | None:
    function = torch_code.compiled_function(frame)
    code, target = torch_code.code_of(function)
    if code is None:
        return None
    function = torch_code.function_of(function)
    variables = bind(function, code, frame.f_locals["args"], frame.f_locals["kwargs"])
    return _Call(
        code=code,
        described=codes.describe(code, target),
        variables=variables,
        inputs=context.describe_inputs(variables),
        values={name: text for name, value in variables.items() if (text := _plain(value))},
    )


def bind(
    function: Any, code: CodeType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The locals that a frame of ``function`` begins with, and the variables that it closes over.

    An argument that is missing is left out: the call will fail by itself.
    """
    owner = getattr(function, "__self__", None)
    plain = getattr(function, "__func__", function)
    given = (owner, *args) if owner is not None else args
    count = code.co_argcount
    names = code.co_varnames
    found = dict(zip(names[:count], given, strict=False))
    defaults = plain.__defaults__ or ()
    optional = dict(zip(names[count - len(defaults) : count], defaults, strict=False))
    optional |= plain.__kwdefaults__ or {}
    own = names[: count + code.co_kwonlyargcount]
    found |= {name: value for name, value in optional.items() if name not in found}
    found |= {name: value for name, value in kwargs.items() if name in own}
    at = len(own)
    if code.co_flags & _VARARGS:
        found[names[at]] = tuple(given[count:])
        at += 1
    if code.co_flags & _VARKEYWORDS:
        found[names[at]] = {name: value for name, value in kwargs.items() if name not in own}
    for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # empty yet
            continue
    return found


def _entries(call: _Call, backend: object) -> list[tuple[str, Any]]:
    """Compile id and guards of each entry that dynamo would look at for the call."""
    # The objects of the guards are taken at once: a reset elsewhere ends the entries' lives.
    found = [
        (str(entry.compile_id), entry.guard_manager)
        for entry in caches.entries_of(call.code, call.described)
        if backend is None or entry.backend is backend or entry.backend == backend
    ]
    return found[:_MAX_ANSWERS]


def _answers(entries: list[tuple[str, Any]], variables: Described) -> Iterator[Described]:
    for compile_id, guards in entries:
        answer = guards.check_verbose(variables)
        parts = "; ".join(map(str, answer.verbose_code_parts)).strip()
        fits = bool(answer.result)
        guard = "" if fits else parts[:_MAX_TEXT]
        yield {"compile_id": compile_id, "fits": fits, "guard": guard}


def _arguments(call: _Call) -> Iterator[Described]:
    """How the call's arguments would be written; of what cannot be, the type."""
    tensors = {described["name"] for described in call.inputs}
    for name, keyword, value in _in_order(call):
        described: Described = {"name": name, "keyword": keyword}
        if name in tensors:
            yield {**described, "kind": "tensor"}
        elif text := _plain(value):
            yield {**described, "kind": "value", "text": text}
        else:
            yield {**described, "kind": "other", "text": type(value).__name__}


def _in_order(call: _Call) -> Iterator[tuple[str, str, Any]]:
    """Each argument but a method's own object: name, keyword if it needs one, and value."""
    code, variables = call.code, call.variables
    names, count = code.co_varnames, code.co_argcount
    own = names[: count + code.co_kwonlyargcount]
    for position, name in enumerate(own[:count]):
        if name in variables and not (position == 0 and name == "self"):
            yield name, "", variables[name]
    rest = len(own)
    if code.co_flags & _VARARGS:
        several = names[rest]
        for position, value in enumerate(variables.get(several, ())):
            yield f"{several}[{position}]", "", value
        rest += 1
    for name in own[count:]:
        if name in variables:
            yield name, name, variables[name]
    if code.co_flags & _VARKEYWORDS:
        for name, value in variables.get(names[rest], {}).items():
            yield f"{names[rest]}[{name!r}]", name, value


def _plain(value: object) -> str:
    """A plain value as Python code; empty if it is none."""
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    if type(value) is str and len(value) <= _MAX_VALUE:
        return mask(repr(value))
    return ""


def _called(frame: FrameType) -> list[str]:
    """Module and global name by which the program knows the callable; empty if by none."""
    function = torch_code.compiled_function(frame)
    owner = torch_code.code_of(function)[1] or getattr(function, "__self__", None)
    modules = [sys.modules.get("__main__")]
    caller = frame.f_back
    while caller is not None and torch_code.is_torchs(caller.f_code):
        caller = caller.f_back
    if caller is not None:
        modules.append(sys.modules.get(caller.f_globals.get("__name__", "")))
    for module in modules:
        for name, value in list(vars(module).items()) if module is not None else ():
            held = getattr(value, "__dict__", None)
            if type(held) is not dict:
                continue
            original = held.get(symbols.ORIGINAL_CALLABLE)
            inner = held.get("_modules", {}).get(symbols.ORIGINAL_MODULE) if owner else None
            if original is function or (inner is not None and inner is owner):
                return [str(getattr(module, "__name__", "")), name]
    return []


def _without_graphs(variables: Described) -> tuple[Described | None, int]:
    """The same with tensors that hold no autograd graph, and the bytes that they keep alive.

    None where a graph would be kept: that is the memory of a whole step.
    """
    torch: Any = sys.modules["torch"]
    found: Described = {}
    size = 0
    with symbols.DISABLE_TORCH_FUNCTION.get()():
        for name, value in variables.items():
            items = list(value) if type(value) in (tuple, list) else [value]
            if type(value) is dict:
                items = list(value.values())
            tensors = [item for item in items if isinstance(item, torch.Tensor)]
            size += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            graphs = [tensor for tensor in tensors if tensor.grad_fn is not None]
            if graphs and (graphs[0] is not value or type(value) is not torch.Tensor):
                return None, 0
            found[name] = _copied(value) if graphs else value
    return found, size


def _copied(tensor: Any) -> Any:
    copied = tensor.detach()
    if tensor.requires_grad:
        copied.requires_grad_()
    # Marks such as mark_dynamic's are attributes, and guards ask for them.
    copied.__dict__.update(tensor.__dict__)
    return copied
