"""What a recogniser is: it is fed the lines of one stream and gives facts."""

from collections.abc import Iterable
from typing import Protocol

from harness.logs.facts import Fact, Place
from harness.logs.prefix import Clean


class Recogniser(Protocol):
    """Recognises one kind of text, line by line, keeping a bounded amount of what came before."""

    @property
    def busy(self) -> bool:
        """Whether what it is in the middle of needs the next line, whatever that is."""
        ...

    def feed(self, line: Clean, place: Place) -> Iterable[Fact]:
        """Take the next line; returns what is complete by now."""
        ...

    def finish(self) -> Iterable[Fact]:
        """Return what is left when the text has ended."""
        ...
