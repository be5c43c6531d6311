"""A bounded queue between two threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from dflash_min.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class Channel(Generic[_T]):
    """A bounded queue from one thread to another, which a third can stop.

    What was taken last keeps its place until `release`, or until the next is asked for; not where
    nothing else is in the queue, so that one can always be made while another is worked on.
    """

    def __init__(self, depth: int) -> None:
        self._items: deque[_T] = deque()
        self._depth = depth
        self._taken = False
        self._changed = threading.Condition()
        self._stopped = False

    def put(self, item: _T) -> None:
        """Append an item, waiting for room.

        Raises:
            Stopped: after `stop`.
        """
        with self._changed:
            self._wait_for(self._has_room)
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> _T:
        """Take the oldest item, waiting for one.

        Raises:
            Stopped: after `stop`.
        """
        with self._changed:
            self._let_go()
            self._wait_for(lambda: bool(self._items))
            item = self._items.popleft()
            self._taken = True
            self._changed.notify_all()
            return item

    def release(self) -> None:
        """Give up the place of what was taken last."""
        with self._changed:
            self._let_go()

    def stop(self) -> None:
        """End every wait, present and future, with `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._items) + (self._taken and bool(self._items)) < self._depth

    def _let_go(self) -> None:
        self._taken = False
        self._changed.notify_all()

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._stopped or ready())
        if self._stopped:
            raise Stopped
