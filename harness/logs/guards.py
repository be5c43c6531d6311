"""``TORCH_LOGS=guards``: the guards of each cache entry, as dynamo prints their tree."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.logs.facts import Fact, Guards, Place
from harness.logs.prefix import Clean

TREE = "TREE_GUARD_MANAGER:"
_NODE = re.compile(r"(?:\| ?)*\+- ([A-Z_]{2,60}): (.*)$")
_STATE = re.compile(r"___check_global_state\(\) against (\{.*\})\s*(?:#.*)?$")
_IN_TREE = re.compile(r"[|+\s]")
_MAX_KEPT = 64
_MAX_LINE = 500
_MAX_LINES = 20_000


@dataclass(slots=True)
class Tree:
    """A tree of guards that is being read."""

    place: Place
    number: str
    lines: list[str] = field(default_factory=list)
    state: str = ""
    seen: int = 0
    _digest: "hashlib._Hash" = field(default_factory=lambda: hashlib.sha256(usedforsecurity=False))

    def take(self, text: str) -> None:
        """Take a line of the tree."""
        self.seen += 1
        found = _NODE.match(text)
        if found is None:
            return
        guard = f"{found[1]}: {found[2]}"
        self._digest.update(guard.encode("utf-8", "backslashreplace"))
        if len(self.lines) < _MAX_KEPT:
            self.lines.append(guard[:_MAX_LINE])
        if state := _STATE.match(found[2]):
            self.state = state[1]

    def fact(self) -> Guards | None:
        """The guards; None if there are none, or nothing says whose they are."""
        if not self.number or not self.lines:
            return None
        return Guards(
            place=self.place,
            number=self.number,
            digest=self._digest.hexdigest()[:16],
            lines=tuple(self.lines),
            state=self.state,
        )


class GuardTrees:
    """Recognises trees of guards."""

    def __init__(self) -> None:
        self._tree: Tree | None = None

    @property
    def busy(self) -> bool:
        """Whether a tree has begun."""
        return self._tree is not None

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Take the next line."""
        text = line.text
        if text.startswith(TREE):
            yield from self.finish()
            self._tree = Tree(place, line.number)
        elif self._tree is not None:
            if self._tree.seen < _MAX_LINES and _IN_TREE.match(text):
                self._tree.take(text)
            else:
                yield from self.finish()

    def finish(self) -> Iterable[Fact]:
        """The tree that was being read."""
        tree, self._tree = self._tree, None
        fact = tree.fact() if tree is not None else None
        return [] if fact is None else [fact]
