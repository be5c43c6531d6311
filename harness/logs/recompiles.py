"""``TORCH_LOGS=recompiles`` and what else of torch's names a function and the guards it failed.

The wordings are those of torch 2.9 to 2.15: ``torch/_dynamo/guards.py`` (``Recompiling function``),
``torch/_dynamo/convert_frame.py`` (the recompile limit) and ``torch/_dynamo/eval_frame.py`` (the
stance that refuses to recompile).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.logs.facts import Fact, Function, LimitHit, Place, Recompile
from harness.logs.prefix import Clean
from harness.logs.standing import stands

RECOMPILING = "Recompiling function "
LIMIT = "torch._dynamo hit config."
STANCE = "Detected recompile when torch.compile stance is"
_RECOMPILING = re.compile(r"Recompiling function (.{1,300}?) in (.{1,1000}?):(\d{1,9})\s*$")
_STANCE = re.compile(
    r"(Detected recompile when torch\.compile stance is '[^']{0,60}')\. "
    r"filename: '(.{1,1000}?)', function name: '(.{1,300}?)', line number: (\d{1,9})"
)
_LIMIT = re.compile(r"torch\._dynamo hit config\.(\w{1,80}) \((\d{1,9})\)")
_FUNCTION = re.compile(r"\s*function: '(.{1,300}?)' \((.{1,1000}?):(\d{1,9})\)")
_LAST_REASON = re.compile(r"\s*last reason: (.*)$")
_ITEM = re.compile(r"\s*- (.*)$")
_NUMBERED = re.compile(r"\s*-?\s*\[?\d+/\d+")
_HEADING = re.compile(r"\s*(?:triggered by the following guard failure|guard \d+ failures?:)")
_LIMIT_NAMES = frozenset(
    {"recompile_limit", "cache_size_limit", "accumulated_recompile_limit",
     "accumulated_cache_size_limit"}
)  # fmt: skip
_MAX_REASONS = 64
_MAX_REASON = 2000
_MAX_LINES = 400


@dataclass(slots=True)
class _Open:
    place: Place
    function: Function
    number: str
    thread: str
    refused: str = ""
    reasons: list[str] = field(default_factory=list)
    lines: int = 0

    def fact(self) -> Recompile:
        return Recompile(
            place=self.place,
            function=self.function,
            reasons=tuple(self.reasons),
            number=self.number,
            refused=self.refused,
            thread=self.thread,
        )


class Recompiles:
    """Recognises recompiles, the recompile limit and refused recompiles."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._limit: LimitHit | None = None
        self._limit_lines = 0

    @property
    def busy(self) -> bool:
        """Whether a message has begun."""
        return self._open is not None or self._limit is not None

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Take the next line."""
        text = line.text
        begun = None
        if RECOMPILING in text:
            begun = self._recompiling(text, line, place)
        elif STANCE in text:
            begun = self._stance(text, line, place)
        elif LIMIT in text and (found := _limit(text)):
            yield from self.finish()
            self._limit = LimitHit(
                place=place, limit=int(found[2]), number=line.number, thread=line.thread
            )
            self._limit_lines = 0
            return
        if begun is not None:
            yield from self.finish()
            self._open = begun
        elif self._open is not None:
            yield from self._reasons(text)
        elif self._limit is not None:
            yield from self._of_limit(text)

    def _recompiling(self, text: str, line: Clean, place: Place) -> _Open | None:
        found = _RECOMPILING.search(text)
        if found is None or not stands(text, found.start()):
            return None
        function = Function(name=found[1], file=found[2], line=int(found[3]))
        refused = "error_on_recompile" if "RecompileError" in text[: found.start()] else ""
        return _Open(place, function, line.number, line.thread, refused)

    def _stance(self, text: str, line: Clean, place: Place) -> _Open | None:
        found = _STANCE.search(text)
        if found is None or not stands(text, found.start()):
            return None
        function = Function(name=found[3], file=found[2], line=int(found[4]))
        return _Open(place, function, line.number, line.thread, found[1])

    def _reasons(self, text: str) -> Iterator[Fact]:
        open_ = self._open
        assert open_ is not None
        open_.lines += 1
        if open_.lines > _MAX_LINES:
            yield from self.finish()
        elif _HEADING.match(text):
            return
        elif (found := _ITEM.match(text)) and len(open_.reasons) < _MAX_REASONS:
            open_.reasons.append(found[1][:_MAX_REASON])
        elif _NUMBERED.match(text) and len(open_.reasons) < _MAX_REASONS:
            open_.reasons.append(text.strip()[:_MAX_REASON])
        elif not (text.startswith((" ", "\t")) and open_.reasons):
            yield from self.finish()

    def _of_limit(self, text: str) -> Iterator[Fact]:
        limit = self._limit
        assert limit is not None
        self._limit_lines += 1
        if found := _FUNCTION.match(text):
            function = Function(name=found[1], file=found[2], line=int(found[3]))
            self._limit = LimitHit(
                place=limit.place,
                limit=limit.limit,
                function=function,
                number=limit.number,
                thread=limit.thread,
            )
        elif found := _LAST_REASON.match(text):
            self._limit = LimitHit(
                place=limit.place,
                limit=limit.limit,
                function=limit.function,
                reason=found[1][:_MAX_REASON],
                number=limit.number,
                thread=limit.thread,
            )
            yield from self.finish()
        elif self._limit_lines > 4 or not text.startswith((" ", "\t")):
            yield from self.finish()

    def finish(self) -> Iterable[Fact]:
        """The message that was being read."""
        found: list[Fact] = []
        if self._open is not None:
            found.append(self._open.fact())
        if self._limit is not None:
            found.append(self._limit)
        self._open = self._limit = None
        return found


def _limit(text: str) -> "re.Match[str] | None":
    found = _LIMIT.search(text)
    told = found is not None and found[1] in _LIMIT_NAMES and stands(text, found.start())
    return found if told else None
