"""Python's tracebacks, with chains and exception groups, as Python and loggers print them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.logs.facts import Fact, Place, Raised, Traceback
from harness.logs.prefix import Clean
from harness.logs.standing import quoted
from harness.timeline import frames

HEADING = "Traceback (most recent call last):"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_IN_THREAD = re.compile(r"Exception in thread (.+?)(?: \([\w<>.]+\))?:$")
_FRAME = re.compile(r' {0,60}File "(.{1,1000}?)", line (\d{1,9})(?:, in (.{1,400}))?$')
_TYPE = re.compile(r"((?:[A-Za-z_]\w{0,99}\.){0,12}[A-Za-z_]\w{0,99})(?:: ?(.*)|$)")
_GROUP = re.compile(r" {0,40}[|+] ?(.*)$")
_MEMBER = re.compile(r" {0,40}(?:\+-)?\+-{5,}(?: (?:\d+|\.\.\.) -+)?$")
_MAX_FRAMES = 400
_MAX_LINKS = 32
_MAX_MESSAGE_LINES = 40
_MAX_MESSAGE = 8000
_MAX_LINES = 4000
_MAX_BETWEEN = 60
# A message of torch's goes on below its first line.
_GOES_ON = re.compile(
    r"\s|from user code|Set TORCH|You can suppress|Explanation|Hint|CUDA error|what\(\)"
)


@dataclass(slots=True)
class _One:
    """An exception that is being read."""

    place: Place
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    type: str = ""
    message: list[str] = field(default_factory=list)
    member: bool = False

    def raised(self, relation: str) -> Raised:
        return Raised(
            type=self.type,
            message="\n".join(self.message).strip()[:_MAX_MESSAGE],
            frames=tuple(frames.of_dump(*frame) for frame in self.frames[:_MAX_FRAMES]),
            relation=relation,
        )


class Tracebacks:
    """Recognises tracebacks. One that is cut before its last line is no fact."""

    def __init__(self) -> None:
        self._thread = ""
        self._column = 0
        self._current: _One | None = None
        self._last: _One | None = None
        self._earlier: list[Raised] = []
        self._members: list[Raised] = []
        self._group: _One | None = None
        self._relation = ""
        self._idle = 0
        self._broken = False
        self._lines = 0

    @property
    def reading(self) -> bool:
        """Whether the line that was fed last is one of an exception's own."""
        return self._current is not None and self._idle == 0

    @property
    def busy(self) -> bool:
        """Whether a traceback, or what may belong to one, has begun."""
        return self._current is not None or self._last is not None or bool(self._thread)

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Take the next line."""
        text = line.text
        at = text.find(HEADING)
        if at >= 0 and not quoted(text, at):
            yield from self._begin(text, at, place, line.thread)
            return
        if not self.busy:
            heading = _IN_THREAD.match(text)
            self._thread = heading[1] if heading else ""
            return
        self._lines += 1
        if self._lines > _MAX_LINES:
            yield from self.finish()
            return
        yield from self._within(text)

    def _within(self, text: str) -> Iterator[Fact]:
        if self._group is not None and (found := _GROUP.match(text)):
            if _MEMBER.match(text):
                self._end_one()
                return
            text = found[1]
        elif self._column and not text.startswith(" ") and len(text) > self._column:
            # A prefix that is not known stands before each line, as wide as before the first.
            cut = text[self._column :]
            if cut.startswith(" ") or self._current is not None:
                text = cut
        if self._current is not None and not self._current.type:
            self._body(text)
        else:
            yield from self._after(text)

    def _begin(self, text: str, at: int, place: Place, thread: str) -> Iterator[Fact]:
        self._end_one()
        grouped = self._group is not None and "|" in text[:at]
        if self._last is not None and not self._relation and not grouped:
            yield from self.finish(keep_thread=True)
        if "Exception Group " in text[:at]:
            self._group = self._group or _One(place)
        if not self.busy:
            self._column = at if text[:at].strip(" +|") and "Group" not in text[:at] else 0
            self._lines = 0
        self._thread = self._thread or thread
        if self._group is not None and not self._group.type and not self._group.frames:
            self._current = self._group
        else:
            self._current = _One(place, member=grouped and self._group is not None)

    def _body(self, text: str) -> None:
        current = self._current
        assert current is not None
        if found := _FRAME.match(text):
            if found[3] is None:  # a SyntaxError's own place
                return
            current.frames.append((found[1], int(found[2]), found[3]))
            if len(current.frames) > 2 * _MAX_FRAMES:
                del current.frames[_MAX_FRAMES // 2 : -_MAX_FRAMES // 2]
            return
        if text.startswith(" ") or not text:
            return
        if found := _TYPE.match(text):
            current.type, message = found[1], found[2] or ""
            current.message.append(message[:_MAX_MESSAGE])
            self._idle, self._broken = 0, False
        else:
            self._current = None  # something else came in between: it is cut
            self._thread = ""

    def _after(self, text: str) -> Iterator[Fact]:
        """What follows an exception's last line: more of its message, or the next one's heading."""
        current = self._current
        if current is not None and text and not self._broken and _GOES_ON.match(text):
            if len(current.message) < _MAX_MESSAGE_LINES:
                current.message.append(text[:_MAX_MESSAGE])
            return
        stripped = text.strip()
        if stripped in {_CAUSE, _CONTEXT}:
            self._end_one()
            self._relation = "cause" if stripped == _CAUSE else "context"
            self._idle = 0
            return
        heading = _IN_THREAD.match(text)
        # What comes after it may still say that it is the cause of the next one.
        self._idle += 1
        self._broken = self._broken or bool(stripped)
        if heading is not None or self._idle > _MAX_BETWEEN:
            yield from self.finish()
            self._thread = heading[1] if heading else ""

    def _end_one(self) -> None:
        """Put the exception that has been read where it belongs."""
        current, self._current = self._current, None
        if current is None or not current.type:
            return
        if current.member:
            if len(self._members) < _MAX_LINKS:
                self._members.append(current.raised("member"))
            return
        if current is self._group:
            self._last = current
            return
        if self._last is not None and self._relation and len(self._earlier) < _MAX_LINKS:
            self._earlier.append(self._last.raised(self._relation))
        self._last, self._relation = current, ""

    def finish(self, *, keep_thread: bool = False) -> Iterable[Fact]:
        """The traceback that was being read, if it is complete."""
        self._end_one()
        last, thread = self._last, self._thread
        found: list[Fact] = []
        if last is not None:
            chain = (last.raised("self"), *reversed(self._earlier), *self._members)
            found.append(Traceback(place=last.place, chain=chain, thread=thread))
        self._last = self._group = None
        self._earlier, self._members, self._relation = [], [], ""
        self._thread = thread if keep_thread and last is None else ""
        self._idle = self._column = self._lines = 0
        return found
