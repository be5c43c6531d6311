"""``TORCH_LOGS=graph_breaks``: where dynamo left a function in the middle."""

import re
from collections.abc import Iterable, Iterator

from harness.logs.facts import Fact, GraphBreak, Place
from harness.logs.prefix import Clean
from harness.logs.standing import stands

BREAK = "Graph break"
_BREAK = re.compile(
    r"Graph break(?: \(.{0,80}?\))? (?:in user code at|from .{0,60}? in) (.{1,1000}?:\d{1,9})"
)
_REASON = re.compile(r"\s*(?:Graph Break )?Reason: (.*)$")
_MAX_LINES = 4


class GraphBreaks:
    """Recognises graph breaks."""

    def __init__(self) -> None:
        self._open: GraphBreak | None = None
        self._lines = 0

    @property
    def busy(self) -> bool:
        """Whether a graph break's reason is still to come."""
        return self._open is not None

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Take the next line."""
        if (
            BREAK in line.text
            and (found := _BREAK.search(line.text))
            and stands(line.text, found.start())
        ):
            yield from self.finish()
            self._open, self._lines = GraphBreak(place=place, where=found[1], reason=""), 0
        elif self._open is not None:
            self._lines += 1
            if found := _REASON.match(line.text):
                self._open = GraphBreak(
                    place=self._open.place, where=self._open.where, reason=found[1][:400]
                )
                yield from self.finish()
            elif self._lines >= _MAX_LINES:
                yield from self.finish()

    def finish(self) -> Iterable[Fact]:
        """The graph break whose reason did not come."""
        found: list[Fact] = [] if self._open is None else [self._open]
        self._open = None
        return found
