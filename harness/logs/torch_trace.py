r"""``TORCH_TRACE``: torch's structured log, a line of JSON an entry, its payload below behind tabs.

The names are those of ``torch/_logging/_internal.py`` (``trace_structured``) in 2.9 to 2.15. An
entry's prefix holds the process id and no thread; but the stack of a ``dynamo_start`` begins in
``threading.py`` where a thread of Python's compiled.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.events.values import Frame
from harness.logs.facts import Compiled, Fact, Function, Place, Version
from harness.logs.guards import Tree
from harness.logs.prefix import Clean
from harness.timeline import frames

ENTRY = '{"'
_MAX_PAYLOAD_LINES = 20_000
_MAX_PAYLOAD = 1 << 18
_MAX_FILES = 1 << 14
_MAX_OPEN = 256
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


@dataclass(slots=True)
class _Begun:
    place: Place
    where: tuple[Frame, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class _Payload:
    """The payload that is being read, and what for."""

    kind: str
    number: str
    place: Place
    lines: list[str] = field(default_factory=list)
    size: int = 0
    tree: Tree | None = None


class TorchTrace:
    """Recognises the structured log's compiles, their reasons and guards."""

    def __init__(self) -> None:
        self._files: dict[int, str] = {}
        self._begun: dict[str, _Begun] = {}
        self._payload: _Payload | None = None

    @property
    def busy(self) -> bool:
        """Whether a payload is being read."""
        return self._payload is not None

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Take the next line."""
        payload = self._payload
        if payload is not None and line.text.startswith("\t") and not line.pid:
            self._more(payload, line.text[1:])
            return
        if payload is not None:
            yield from self._close()
        if line.pid and line.text.startswith(ENTRY):
            try:
                yield from self._entry(json.loads(line.text), place)
            except _UNREADABLE:
                return

    def _more(self, payload: _Payload, text: str) -> None:
        if payload.tree is not None:
            payload.tree.take(text)
        elif payload.size < _MAX_PAYLOAD and len(payload.lines) < _MAX_PAYLOAD_LINES:
            payload.lines.append(text)
            payload.size += len(text)

    def _entry(self, entry: dict[str, Any], place: Place) -> Iterator[Fact]:
        number = _number(entry)
        if "str" in entry:
            name, at = entry["str"]
            if len(self._files) < _MAX_FILES:
                self._files[int(at)] = str(name)
        elif "dynamo_start" in entry:
            begun = self._of(number, place)
            begun.where = self._stack(entry["dynamo_start"].get("stack", ()))
        elif "artifact" in entry:
            name = entry["artifact"]["name"]
            if name in {"recompile_reasons", "torch_version"}:
                self._payload = _Payload(name, number, place)
        elif "dynamo_cpp_guards_str" in entry:
            self._payload = _Payload("guards", number, place, tree=Tree(place, number))
        elif "compilation_metrics" in entry:
            fact = self._compiled(entry["compilation_metrics"], number, place)
            if fact is not None:
                yield fact

    def _of(self, number: str, place: Place) -> _Begun:
        begun = self._begun.get(number)
        if begun is None:
            if len(self._begun) >= _MAX_OPEN:
                self._begun.pop(next(iter(self._begun)))
            begun = self._begun[number] = _Begun(place)
        return begun

    def _close(self) -> Iterator[Fact]:
        payload, self._payload = self._payload, None
        if payload is None:
            return
        if payload.tree is not None:
            fact = payload.tree.fact()
            if fact is not None:
                yield fact
            return
        try:
            read = _json_or_text("\n".join(payload.lines))
            if payload.kind == "torch_version":
                yield Version(place=payload.place, torch=str(read["pytorch_version"])[:40])
            else:
                texts = read if isinstance(read, list) else [read]
                reasons = tuple(str(text)[:2000] for text in texts[:64])
                self._of(payload.number, payload.place).reasons = reasons
        except _UNREADABLE:
            return

    def _compiled(self, metrics: dict[str, Any], number: str, place: Place) -> Compiled | None:
        if not metrics.get("co_name") or metrics.get("is_forward") is False:
            return None
        begun = self._begun.pop(number, None) or _Begun(place)
        reason = metrics.get("recompile_reason")
        reasons = begun.reasons or ((str(reason)[:2000],) if reason else ())
        error = " ".join(
            str(metrics[key]) for key in ("fail_type", "fail_reason") if metrics.get(key)
        )
        return Compiled(
            place=begun.place,
            number=number,
            function=Function(
                name=str(metrics["co_name"])[:300],
                file=str(metrics.get("co_filename", ""))[:1000],
                line=int(metrics.get("co_firstlineno") or 0),
            ),
            reasons=reasons,
            error=error[:2000],
            where=begun.where,
        )

    def _stack(self, stack: Iterable[dict[str, Any]]) -> tuple[Frame, ...]:
        found = []
        for frame in list(stack)[-200:]:
            file = frame.get("filename")
            name = self._files.get(file, "") if isinstance(file, int) else str(file)
            found.append(frames.of_dump(name, int(frame.get("line", 0)), str(frame.get("name"))))
        return tuple(reversed(found))

    def finish(self) -> Iterable[Fact]:
        """What was being read, and the compiles that began and never ended."""
        found = list(self._close())
        for number, begun in self._begun.items():
            own = begun.where[0] if begun.where else None
            if own is not None:
                function = Function(name=own.function, file=own.file, line=own.line)
                found.append(
                    Compiled(
                        place=begun.place,
                        number=number,
                        function=function,
                        reasons=begun.reasons,
                        where=begun.where,
                        ended=False,
                    )
                )
        self._begun = {}
        return found


def _number(entry: dict[str, Any]) -> str:
    if "frame_id" not in entry:
        return ""
    return f"{int(entry['frame_id'])}/{int(entry['frame_compile_id'])}"


def _json_or_text(text: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    try:
        return json.loads(text)
    except _UNREADABLE:
        return text
