"""Strategies: which schedules to run, and in which order. One a module."""

from collections.abc import Iterator
from typing import Protocol

from harness.schedule.plan import Schedule


class Strategy(Protocol):
    """A source of schedules.

    Attributes:
        name: ``serial``, ``given``, ``enumerate``, ``pct`` or ``chaos``.
    """

    name: str

    def describe(self) -> str:
        """One line on what is going to be run, and what it can promise."""

    def schedules(self) -> Iterator[Schedule]:
        """The schedules, in a fixed order; perhaps without end."""
