"""Which sequence numbers of a process's events were seen, in any order and in little room."""

from collections.abc import Iterable
from typing import Protocol, TypeVar


class _Numbered(Protocol):
    @property
    def seq(self) -> int: ...


EventT = TypeVar("EventT", bound=_Numbered)

_PAGE_BITS = 16
_PAGE = 1 << _PAGE_BITS
_IN_PAGE = _PAGE - 1
_MAX_PAGES = 1 << 11
"""Room for 1.3 * 10**8 numbers in 134 MB; numbers that are scattered as no recorder does need more
pages, and are then no longer told from repeated ones."""


class Numbering:
    """The numbers seen, one byte each.

    Attributes:
        repeated: how many were seen again.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._pages: dict[int, bytearray] = {}
        self._beyond = 0

    def add(self, seq: int) -> bool:
        """Note a number; return whether it is new."""
        page = self._page(seq >> _PAGE_BITS)
        if page is None:
            self._beyond += 1
            return True
        at = seq & _IN_PAGE
        if page[at]:
            self.repeated += 1
            return False
        page[at] = 1
        return True

    def only_new(self, events: Iterable[EventT]) -> list[EventT]:
        """Note the events' numbers; return those events whose number is new."""
        found = []
        number, page = -1, None
        for event in events:
            seq = event.seq
            if seq >> _PAGE_BITS != number:
                number = seq >> _PAGE_BITS
                page = self._page(number)
            if page is not None and not page[seq & _IN_PAGE]:
                page[seq & _IN_PAGE] = 1
                found.append(event)
            elif self.add(seq):
                found.append(event)
        return found

    def excuse(self, seqs: Iterable[int]) -> int:
        """Do not count numbers as missing from now on; return how many of them were not seen."""
        found = 0
        for seq in seqs:
            page = self._pages.get(seq >> _PAGE_BITS)
            if page is not None and not page[seq & _IN_PAGE]:
                page[seq & _IN_PAGE] = 1
                found += 1
        return found

    def excuse_from(self, seq: int) -> int:
        """The same of all numbers from one on that came before the last one seen."""
        if not self._pages:
            return 0
        last = max(self._pages)
        end = (last << _PAGE_BITS) + self._pages[last].rindex(1)
        return self.excuse(range(seq, min(end, seq + _PAGE)))

    @property
    def missing(self) -> int:
        """How many numbers between the first and the last were not seen."""
        if not self._pages or self._beyond:
            return 0
        first, last = min(self._pages), max(self._pages)
        begin = (first << _PAGE_BITS) + self._pages[first].index(1)
        end = (last << _PAGE_BITS) + self._pages[last].rindex(1)
        seen = sum(page.count(1) for page in self._pages.values())
        return end - begin + 1 - seen

    @property
    def first_missing(self) -> int | None:
        """The first number between the first and the last that was not seen; None: all were."""
        if not self.missing:
            return None
        last = -1
        for number in sorted(self._pages):
            page = self._pages[number]
            begin = 0
            if last < 0:  # nothing is known of what came before the first
                begin = page.index(1)
            elif number != last + 1:
                return (last + 1) << _PAGE_BITS
            gap = page.find(0, begin)
            if gap >= 0:
                return (number << _PAGE_BITS) + gap
            last = number
        return None

    def _page(self, number: int) -> bytearray | None:
        page = self._pages.get(number)
        if page is None and len(self._pages) < _MAX_PAGES:
            page = self._pages[number] = bytearray(_PAGE)
        return page
